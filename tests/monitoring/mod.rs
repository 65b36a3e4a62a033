//! What we ship for Prometheus: rules that hold, that fire when they should, and that somebody can act on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use meshgate::telemetry::metrics::rows;
use serde::Deserialize;

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
    exp_alerts: Vec<serde_json::Value>,
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

/// Names of our metrics in an expression.
fn metrics(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|byte: char| !(byte.is_ascii_alphanumeric() || byte == '_'));
    words.filter(|word| word.starts_with("meshgate_"))
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
    let tests = path("tests/monitoring/alerts.test.yaml");
    match Command::new("promtool").args(["test", "rules"]).arg(tests).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
        }
        Err(error) => eprintln!("the rules are not run: promtool (Debian's prometheus): {error}"),
    }
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
        for metric in metrics(expr) {
            assert!(known.contains(metric), "{alert}: there is no {metric}");
        }
        assert!(["warning", "critical"].contains(&labels.severity.as_str()), "{alert}: {}", labels.severity);
        assert!(annotations.summary.ends_with('.'), "{alert}: {}", annotations.summary);
        assert_eq!(annotations.runbook, format!("docs/runbook.md#{}", alert.to_lowercase()));
    }
    let named: BTreeSet<_> = alerts.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(entries, named, "an entry for each alert, and no other");
}
