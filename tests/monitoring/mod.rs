//! What we ship for Prometheus: rules that hold, that fire when they should, and that somebody can act on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use meshgate::telemetry::metrics::rows;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    expr: String,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Deserialize)]
struct Labels {
    severity: String,
}

#[derive(Deserialize)]
struct Annotations {
    summary: String,
    runbook: String,
}

#[derive(Deserialize)]
struct Cases {
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    alert_rule_test: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    alertname: String,
    exp_alerts: Vec<Value>,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_saphyr::from_str(&std::fs::read_to_string(path(name)).unwrap()).unwrap()
}

fn alerts() -> Vec<Rule> {
    read::<Rules>("deploy/monitoring/alerts.yaml").groups.into_iter().flat_map(|group| group.rules).collect()
}

fn words(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|byte: char| !(byte.is_ascii_alphanumeric() || byte == '_'))
}

/// Runs Debian's promtool on a file; where there is none, the file is only read by us.
#[expect(clippy::print_stderr, reason = "a test that does less than it should says so")]
fn promtool(args: &[&str], file: &Path) {
    match Command::new("promtool").args(args).arg(file).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
        }
        Err(error) => eprintln!("not checked, no promtool (Debian's prometheus): {error}"),
    }
}

#[test]
fn every_alert_fires_and_is_silent_when_it_should() {
    let cases = read::<Cases>("tests/monitoring/alerts.test.yaml");
    let expected: Vec<_> = cases.tests.into_iter().flat_map(|case| case.alert_rule_test).collect();
    for Rule { alert, .. } in alerts() {
        for fires in [true, false] {
            let has = |case: &&Expected| case.alertname == alert && case.exp_alerts.is_empty() != fires;
            assert_eq!(expected.iter().filter(has).count(), 1, "{alert}: one case in which it fires, one in which not");
        }
    }
    promtool(&["test", "rules"], &path("tests/monitoring/alerts.test.yaml"));
}

#[test]
fn alerts_speak_of_metrics_that_there_are_and_have_a_page_to_read() {
    let known: BTreeSet<_> = rows()
        .flat_map(|row| match row.kind.name() {
            "histogram" => ["_bucket", "_sum", "_count"].map(|part| row.name.to_owned() + part).to_vec(),
            _ => vec![row.name.to_owned()],
        })
        .collect();
    let runbook = std::fs::read_to_string(path("docs/runbook.md")).unwrap();
    let entries: BTreeSet<_> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = alerts();
    for Rule { alert, expr, labels, annotations } in &alerts {
        for metric in words(expr).filter(|word| word.starts_with("meshgate_")) {
            assert!(known.contains(metric), "{alert}: there is no {metric}");
        }
        assert!(["warning", "critical"].contains(&labels.severity.as_str()), "{alert}: {}", labels.severity);
        assert!(annotations.summary.ends_with('.'), "{alert}: {}", annotations.summary);
        assert_eq!(annotations.runbook, format!("docs/runbook.md#{}", alert.to_lowercase()));
    }
    let named: BTreeSet<_> = alerts.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(entries, named, "an entry for each alert, and no other");
}

/// Every expression of a dashboard.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| expressions(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let dashboard = std::fs::read_to_string(path("deploy/monitoring/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut shown = Vec::new();
    expressions(&dashboard, &mut shown);
    let is_name = |word: &&str| word.starts_with("meshgate_") || word.starts_with("process_");
    let named: BTreeSet<_> = shown.iter().flat_map(|expr| words(expr).filter(is_name)).map(base).collect();
    let known: BTreeSet<_> = rows().map(|row| row.name).collect();
    assert_eq!(named, known);
    // Prometheus' own parser finds each expression well-formed, with the variables filled in.
    let rules = shown.iter().enumerate().map(|(at, expr)| {
        let expr = expr.replace("$instance", ".*").replace("$cluster", ".*");
        serde_json::json!({"record": format!("dashboard:{at}"), "expr": expr})
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    let group = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules.collect::<Vec<_>>()}]});
    std::fs::write(file.path(), group.to_string()).unwrap();
    promtool(&["check", "rules"], file.path());
    // Panels do not lie on each other, and each says what it is for.
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(x < 24 && taken.insert((x, y)), "{} lies on another panel", panel["title"]);
        }
        let is_row = panel["type"] == "row";
        assert!(is_row || panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{}", panel["title"]);
    }
}

/// The metric of a histogram's part.
fn base(name: &str) -> &str {
    ["_bucket", "_count", "_sum"].into_iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name)
}
