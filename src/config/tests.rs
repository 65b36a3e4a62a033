use std::path::Path;

use clap::{Args as _, FromArgMatches as _};

use super::*;
use crate::allocator::etcd::{EtcdTerms, RateLimits};
use crate::allocator::{AllocatorSettings, GcTimes, NumberRange};

/// Flags that make a whole configuration, for tests of something else.
const ENOUGH: [&str; 3] = ["--kvstore-opt=etcd.config=/etcd.yaml", "--plaintext", "--listen=127.0.0.1:0"];

fn flags(args: &[&str]) -> Flags {
    let command = Flags::augment_args(clap::Command::new("run").no_binary_name(true));
    Flags::from_arg_matches(&command.try_get_matches_from(args).expect("flags that clap takes")).expect("flags")
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// With flags, variables and the text of a file.
fn load(args: &[&str], variables: &[(&str, &str)], file: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("meshgate.yaml");
    std::fs::write(&path, file).expect("a file");
    let mut flags = flags(args);
    flags.config = Some(path.clone());
    Config::load(flags, &environment(variables)).map_err(|mut error| {
        for problem in &mut error.problems {
            problem.place = problem.place.replace(&*path.to_string_lossy(), "FILE");
        }
        error
    })
}

/// The lines of the error of a configuration that is whole but for these flags.
fn errors(args: &[&str]) -> String {
    errors_of(args, &[], "")
}

fn errors_of(args: &[&str], variables: &[(&str, &str)], file: &str) -> String {
    load(&[&ENOUGH, args].concat(), variables, file).expect_err("something is wrong").to_string()
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let file = "cluster-name: file\ncluster-id: 3\nlog-format: json\nmax-subscribers: 7\n";
    let variables = [("MESHGATE_CLUSTER_NAME", "env"), ("MESHGATE_CLUSTER_ID", "2"), ("MESHGATE_LOG_FORMAT", "")];
    let config = load(&[&ENOUGH[..], &["--cluster-name=flag"]].concat(), &variables, file).expect("a whole one");
    assert_eq!(config.cluster.name.as_str(), "flag");
    assert_eq!(config.cluster.id.get(), 2, "a variable beats the file");
    assert_eq!(config.log_format, LogFormat::Json, "an empty variable is not set");
    assert_eq!(config.api.max_subscribers, 7);
    assert_eq!(config.shutdown_grace, Duration::from_secs(10));
    let summary = config.summary();
    for part in [
        "cluster-name=flag (flag)",
        "cluster-id=2 (environment)",
        "max-subscribers=7 (file)",
        "shutdown-grace=10s,",
        "kvstore-opt=etcd.config=/etcd.yaml (flag)",
    ] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
}

#[test]
fn the_variable_names_the_file_too() {
    let problems = Config::load(flags(&ENOUGH), &environment(&[("MESHGATE_CONFIG", "/nowhere.yaml")]))
        .expect_err("there is no such file")
        .to_string();
    assert_eq!(
        problems,
        "--config /nowhere.yaml: the file cannot be read: No such file or directory (os error 2); name a readable YAML file"
    );
}

#[test]
fn the_own_store_in_every_spelling() {
    let without = ["--plaintext", "--listen=127.0.0.1:0"];
    for (variables, file) in [
        (vec![("MESHGATE_KVSTORE_OPT", "etcd.config=/x")], ""),
        (vec![("MESHGATE_KVSTORE_OPT", r#"{"etcd.config": "/x"}"#)], ""),
        (vec![], "kvstore-opt:\n  etcd.config: /x\n"),
        (vec![], "kvstore-opt: {etcd.config: /x}\n"),
        (vec![], "kvstore-opt: '{\"etcd.config\": \"/x\"}'\n"),
    ] {
        let config = load(&without, &variables, file).unwrap_or_else(|error| panic!("{variables:?} {file}: {error}"));
        assert_eq!(config.stores.local, Path::new("/x"));
    }
    assert_eq!(
        load(&without, &[], "").expect_err("no store").to_string(),
        "kvstore-opt: the cluster's own store is not given; give --kvstore-opt etcd.config=PATH, the etcd client YAML that \
         the cluster's agents have"
    );
}

#[test]
fn unknown_store_options_name_the_known_one() {
    let error = |option: &str| {
        load(&["--plaintext", "--listen=127.0.0.1:0", "--kvstore-opt", option], &[], "").expect_err(option).to_string()
    };
    assert_eq!(
        error("etcd.address=x"),
        "--kvstore-opt: unknown option `etcd.address`; the known options are etcd.config=PATH and the limits etcd.qps, \
         etcd.bootstrapQps, etcd.maxInflight"
    );
    assert_eq!(error("etcd.confg=x"), "--kvstore-opt: unknown option `etcd.confg`; did you mean `etcd.config`?");
    assert_eq!(error("etcd.config"), "--kvstore-opt: etcd.config has no value; write etcd.config=PATH");
}

#[test]
fn cluster_ids() {
    assert_eq!(
        errors(&["--cluster-name=a", "--cluster-id=300"]),
        "--cluster-id 300: cluster ID 300 is above 255, the most that this mesh's numbers can tell apart; give the ID that \
         the cluster's agents have, 1 to 255, or set max-connected-clusters to 511 in every cluster"
    );
    for bad in ["-1", "x", "1.5", "99999999999"] {
        assert_eq!(
            errors(&["--cluster-name=a", "--cluster-id", bad]),
            format!("--cluster-id {bad}: not a cluster ID; give the ID that the cluster's agents have, 1 to 255")
        );
    }
    assert!(errors(&["--cluster-name=a", "--cluster-id=512", "--max-connected-clusters=511"]).contains("above 511"));
    let widest = ["--cluster-name=a", "--cluster-id=511", "--max-connected-clusters=511"];
    assert_eq!(load(&[&ENOUGH[..], &widest].concat(), &[], "").expect("fits").cluster.id.get(), 511);
    assert_eq!(
        errors(&["--max-connected-clusters=512"]),
        "--max-connected-clusters 512: not a width that identity numbers can have; give 255 or 511, as in every other cluster"
    );
    assert_eq!(
        errors(&["--cluster-name=a", "--clustermesh-config=/"]),
        "cluster-id: 0 means not set, and peers (clustermesh-config) need to tell this cluster from theirs; give an ID that \
         no peer has, 1 to 255"
    );
}

#[test]
fn cluster_names() {
    assert_eq!(
        errors(&["--cluster-id=1"]),
        "cluster-name: the name `default` cannot be used with cluster ID 1; give the cluster a name of its own, unique in \
         the mesh"
    );
    // The last two are how a cloud names clusters (FIELD-FAULTS, A10).
    for bad in ["A", "a.b", "a_b", "-a", "a-", &"a".repeat(33), "arn:aws:eks:x", "arn:aws:eks:eu-west-1:1:cluster/x"] {
        let error = errors(&["--cluster-id=1", &format!("--cluster-name={bad}")]);
        assert!(error.starts_with(&format!("--cluster-name {bad}: a cluster name ")), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let longest = "a".repeat(32);
    load(&[&ENOUGH[..], &["--cluster-id=1", "--cluster-name", &longest]].concat(), &[], "").expect("32 characters fit");
}

#[test]
fn the_file() {
    assert_eq!(
        errors_of(&[], &[], "# a comment\nlog_level: info\nfoo-bar: {x: 1}\n"),
        "FILE:2: log_level: unknown key; did you mean `log-level`?\n\
         FILE:3: foo-bar: unknown key; `meshgate run --help` lists the flags, whose names are the keys"
    );
    assert_eq!(errors_of(&[], &[], "log-format: xml\n"), "FILE:1: log-format: xml: no such format; give text or json");
    for (broken, line) in
        [("a: b: c\n", 1), ("log-level: info\nlog-level: warn\n", 2), ("- a\n", 1), ("log-level: [a]\n", 1)]
    {
        let error = errors_of(&[], &[], broken);
        assert!(error.starts_with(&format!("FILE:{line}: ")), "{broken}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    load(&ENOUGH, &[], "# nothing\n\n").expect("an empty file says nothing");
    load(&ENOUGH, &[], "log-level:\n").expect("an empty value says nothing");
}

#[test]
fn the_listeners() {
    let enough = ENOUGH[0];
    let error = |args: &[&str]| load(&[&[enough], args].concat(), &[], "").expect_err("something is wrong").to_string();
    assert_eq!(
        error(&["--plaintext"]),
        "listen: plaintext is for loopback addresses only; listen on 127.0.0.1 or [::1], or give TLS files in its place"
    );
    assert_eq!(
        error(&["--tls-cert=c"]),
        "tls-key, tls-client-ca: the gRPC API is served over mutual TLS, and this is not given; give it (`meshgate certs` \
         makes a set for development), or plaintext on a loopback address"
    );
    assert_eq!(
        error(&["--plaintext", "--listen=[::1]:1", "--tls-key=k"]),
        "--tls-key k: given together with plaintext; leave one of the two out"
    );
    assert_eq!(
        error(&["--plaintext", "--listen=[::1]:1", "--access-policy=p"]),
        "--access-policy p: given together with plaintext, where no client has a certificate to go by; leave one of the two out"
    );
    assert_eq!(
        error(&["--plaintext", "--listen=localhost:1"]),
        "--listen localhost:1: not an IP address and a port; give both, such as 0.0.0.0:4280 (names are not resolved; \
         0.0.0.0 is every interface)"
    );
    let args = [enough, "--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"];
    let security = load(&args, &[], "").expect("whole").api.security;
    assert_eq!(security, Security::MutualTls { cert: "c".into(), key: "k".into(), client_ca: "a".into() });
}

#[test]
fn numbers_times_and_switches() {
    for (flag, line) in [
        ("--shutdown-grace=10", "--shutdown-grace 10: not a time; give a time from 0s to 1h, with a unit, such as 10s"),
        ("--keepalive-interval=1s", "--keepalive-interval 1s: out of range; give a time from 5s to 10m"),
        ("--list-page-size=0", "--list-page-size 0: out of range; give a whole number from 1 to 65536"),
        ("--max-subscribers=many", "--max-subscribers many: not such a number; give a whole number from 1 to 1000000"),
        ("--plaintext=yes", "--plaintext yes: neither true nor false; give one of them"),
        (
            "--liveness-timeout=10s",
            "--liveness-timeout 10s: not longer than progress-interval: every quiet watch would be given up; give three times \
             progress-interval",
        ),
        ("--backoff-max=1ms", "--backoff-max 1ms: shorter than backoff-base; give at least that"),
        (
            "--log-level=inof",
            "--log-level inof: neither a level (off, error, warn, info, debug, trace) nor directives like \
             info,meshgate::kvstore=debug; give a level such as info",
        ),
    ] {
        let enough = if flag.starts_with("--plaintext") { &[ENOUGH[0], ENOUGH[2]] } else { &ENOUGH[..] };
        assert_eq!(load(&[enough, &[flag]].concat(), &[], "").expect_err(flag).to_string(), line);
    }
    assert_eq!(
        errors_of(&[], &[("MESHGATE_PEER_RESCAN_INTERVAL", "0s")], ""),
        "MESHGATE_PEER_RESCAN_INTERVAL=0s: out of range; give a time from 100ms to 1h"
    );
}

#[test]
fn mistyped_variables() {
    assert_eq!(
        errors_of(&[], &[("MESHGATE_CLUSTER_NMAE", "a")], ""),
        "MESHGATE_CLUSTER_NMAE: unknown variable; did you mean `MESHGATE_CLUSTER_NAME`?"
    );
    let of_kubernetes =
        ["MESHGATE_PORT", "MESHGATE_PORT_4280_TCP", "MESHGATE_SERVICE_HOST", "MESHGATE_SERVICE_PORT_GRPC"];
    load(&ENOUGH, &of_kubernetes.map(|name| (name, "tcp://10.0.0.1:4280")), "").expect("not ours to judge");
}

#[test]
fn all_problems_are_found_in_one_go() {
    let error = load(&["--cluster-id=x", "--clustermesh-config=/nowhere"], &[("MESHGATE_LISTEN", "y")], "zzz: 1\n")
        .expect_err("a lot is wrong")
        .to_string();
    let places: Vec<_> = error.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(
        places,
        [
            "FILE:1",
            "--cluster-id x",
            "kvstore-opt",
            "--clustermesh-config /nowhere",
            "MESHGATE_LISTEN=y",
            "tls-cert, tls-key, tls-client-ca"
        ]
    );
}

/// `# key: value` in the example is the key's default, and every setting is there.
#[test]
fn the_example_file_is_whole_and_shows_the_defaults() {
    let example = include_str!("../../deploy/meshgate.yaml");
    let mut problems = Vec::new();
    let path = Path::new("deploy/meshgate.yaml");
    let given = sources::parse_file(path, example, &mut problems);
    let uncommented: String = example
        .lines()
        .filter_map(|line| line.strip_prefix("# e.g. ").or_else(|| line.strip_prefix("# ")).or(Some(line)))
        .filter(|line| line.split_once(": ").is_some_and(|(key, _)| settings::named(key).is_some()))
        .flat_map(|line| [line, "\n"])
        .collect();
    let shown = sources::parse_file(path, &uncommented, &mut problems);
    assert_eq!(problems, []);
    for setting in settings::ALL {
        if given.contains_key(setting.name) {
            continue;
        }
        let shown = shown.get(setting.name).unwrap_or_else(|| panic!("{} is not in the example", setting.name));
        if let Some(default) = setting.default {
            assert_eq!(shown.raw, sources::Raw::Text(default.to_owned()), "{}", setting.name);
        }
    }
    let config = Config::load(Flags { layer: given, config: None }, &Environment::default())
        .expect("the example is a whole configuration");
    assert_eq!(config.cluster.name.as_str(), "cluster-a");
}

#[test]
fn the_allocators_settings() {
    let limited =
        ["--kvstore-opt=etcd.qps=100", "--kvstore-opt=etcd.bootstrapQps=0", "--kvstore-opt=etcd.maxInflight=5"];
    let rates = ["--node-name=n1", "--identity-gc-rate-limit=100", "--identity-gc-rate-interval=10s"];
    let config = load(&[&ENOUGH[..], &limited, &rates].concat(), &[], "").expect("whole").allocating;
    let limits = RateLimits { per_second: Some(100), in_flight: Some(5), bootstrap_per_second: None };
    assert_eq!((config.limits, config.node.as_str()), (limits, "n1"));
    assert_eq!((config.gc.pace, config.announce), (Duration::from_millis(100), None));
    let announcing = load(&[&ENOUGH[..], &["--announce-cluster"]].concat(), &[], "").expect("whole").allocating;
    assert_eq!(announcing.announce, Some(Duration::from_mins(1)));
    assert!(!announcing.node.is_empty(), "the host's name");
    let off = load(&ENOUGH, &[("MESHGATE_ENABLE_ALLOCATOR", "false")], "").expect("whole").allocating;
    assert!(!off.enabled && config.enabled);
    assert_eq!(
        errors(&["--kvstore-opt=etcd.qps=many"]),
        "--kvstore-opt: etcd.qps=many is no such limit; give a whole number from 1 to 1000000, or 0 for none"
    );
    assert_eq!(
        errors(&["--node-name=a/b"]),
        "--node-name a/b: not one plain segment of a path; give a name without `/`"
    );
}

/// Our defaults and those of the rooms they are for.
#[test]
fn defaults_agree_with_the_rooms() {
    let config = load(&ENOUGH, &[], "").expect("whole");
    assert_eq!(format!("{:?}", config.stores.timing), format!("{:?}", Timing::default()));
    assert_eq!(format!("{:?}", config.stores.list), format!("{:?}", ListWatchOptions::default()));
    let AllocatingConfig { terms, gc, sync, first_list, release_on_shutdown, limits, .. } = config.allocating;
    let range = NumberRange::new(1, 2, 0).expect("a range");
    let room = AllocatorSettings::new(range);
    assert_eq!((terms, gc, limits), (EtcdTerms::default(), GcTimes::default(), RateLimits::default()));
    assert_eq!((sync, first_list, release_on_shutdown), (room.sync, room.first_list, room.release_on_shutdown));
}
