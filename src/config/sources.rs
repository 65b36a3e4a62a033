//! Where values come from: flags, environment, file. Each says what was given and where; none judges a value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::Spanned;

use super::error::{Origin, Problem, did_you_mean, env_name};
use super::settings::{ALL, Setting, Shape, named};

/// The flag and variable that name the file.
const CONFIG: &str = "config";

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    Text(String),
    Pairs(Vec<(String, String)>),
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub raw: Raw,
    pub origin: Origin,
}

/// What one source gives, by the setting's name.
pub(super) type Layer = BTreeMap<&'static str, Given>;

/// The flags of `meshgate run`, unjudged. A clap argument group: flatten it into a command.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub(super) layer: Layer,
    pub(super) config: Option<PathBuf>,
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in ALL {
            let Some(values) = matches.get_many::<String>(setting.name) else { continue };
            let mut values = values.cloned();
            let raw = match setting.shape {
                Shape::Pairs => Raw::Pairs(values.map(|text| pair(&text)).collect()),
                Shape::Text | Shape::Switch => Raw::Text(values.next().unwrap_or_default()),
            };
            self.layer.insert(setting.name, Given { raw, origin: Origin::Flag });
        }
        self.config = matches.get_one::<PathBuf>(CONFIG).cloned();
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!("YAML file whose keys are the flags' names [env: {}]", env_name(CONFIG)));
        ALL.into_iter().map(arg).fold(command.arg(config), Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg(setting: &'static Setting) -> Arg {
    let env = env_name(setting.name);
    let default = setting.default.map_or_else(String::new, |default| format!(" [default: {default}]"));
    let arg = Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.value)
        .help_heading(setting.group)
        // So that a negative number gets our answer, not one about a flag called -1.
        .allow_negative_numbers(true)
        .help(format!("{} [env: {env}]{default}", setting.help))
        .long_help(format!("{} ({}) [env: {env}]{default}", setting.help, setting.why));
    match setting.shape {
        Shape::Text => arg,
        Shape::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Shape::Pairs => arg.action(ArgAction::Append),
    }
}

/// Variables of the environment that are meant for us.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// Those of this process.
    #[must_use]
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// The path of the file. An empty variable is one that is not set.
    pub(super) fn config(&self) -> Option<PathBuf> {
        self.get(CONFIG).map(PathBuf::from)
    }

    fn get(&self, setting: &str) -> Option<&OsString> {
        self.0.get(&OsString::from(env_name(setting))).filter(|value| !value.is_empty())
    }

    /// Slips of the finger. Other unknown variables are none of our business: Kubernetes makes some for every Service, and
    /// one that is called `meshgate` has names that begin as ours do.
    fn mistyped(&self) -> impl Iterator<Item = Problem> {
        self.0.keys().filter_map(|variable| {
            let variable = variable.to_str()?;
            let name = variable.strip_prefix(super::ENV_PREFIX)?.to_lowercase().replace('_', "-");
            let meant = did_you_mean(&name, ALL.map(|setting| setting.name).into_iter().chain([CONFIG]))?;
            (meant != name).then(|| Problem {
                place: variable.to_owned(),
                what: "unknown variable".to_owned(),
                advice: format!("did you mean `{}`?", env_name(meant)),
            })
        })
    }

    pub(super) fn layer(&self, problems: &mut Vec<Problem>) -> Layer {
        let mut layer = Layer::new();
        problems.extend(self.mistyped());
        for setting in ALL {
            let Some(value) = self.get(setting.name) else { continue };
            let Some(text) = value.to_str() else {
                problems.push(Problem {
                    place: env_name(setting.name),
                    what: "the value is not UTF-8".to_owned(),
                    advice: format!("use the flag --{} or the file", setting.name),
                });
                continue;
            };
            let raw = match setting.shape {
                Shape::Pairs => pairs(text),
                Shape::Text | Shape::Switch => Raw::Text(text.to_owned()),
            };
            layer.insert(setting.name, Given { raw, origin: Origin::Env });
        }
        layer
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<T: IntoIterator<Item = (OsString, OsString)>>(variables: T) -> Self {
        Self(
            variables
                .into_iter()
                .filter(|(name, _)| name.to_str().is_some_and(|name| name.starts_with(super::ENV_PREFIX)))
                .collect(),
        )
    }
}

/// `key=value`; without `=`, a key whose value is empty.
fn pair(text: &str) -> (String, String) {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    (key.trim().to_owned(), value.trim().to_owned())
}

/// Several pairs in one text: separated by commas, or the JSON object that Cilium's config map holds.
fn pairs(text: &str) -> Raw {
    if let Ok(object) = serde_json::from_str::<BTreeMap<String, String>>(text) {
        return Raw::Pairs(object.into_iter().collect());
    }
    Raw::Pairs(text.split(',').map(pair).collect())
}

/// Reads the file. What is wrong with it goes to `problems`; what is readable is returned.
pub(super) fn file_layer(path: &Path, problems: &mut Vec<Problem>) -> Layer {
    match std::fs::read_to_string(path) {
        Ok(text) => parse_file(path, &text, problems),
        Err(error) => {
            problems.push(Problem {
                place: format!("--{CONFIG} {}", path.display()),
                what: format!("the file cannot be read: {error}"),
                advice: "name a readable YAML file".to_owned(),
            });
            Layer::new()
        }
    }
}

pub(super) fn parse_file(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Layer {
    // A file of nothing but comments is an empty document, not a mapping.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Layer::new();
    }
    let options = serde_saphyr::options! { with_snippet: false };
    let keys = match serde_saphyr::from_str_with_options::<Keys>(text, options) {
        Ok(Keys(keys)) => keys,
        Err(error) => {
            let line = error.location().map_or(0, |location| location.line());
            problems.push(Problem {
                place: format!("{}:{line}", path.display()),
                what: first_line(&error.render()),
                advice: "the file is YAML: one `flag-name: value` a line".to_owned(),
            });
            return Layer::new();
        }
    };
    let mut layer = Layer::new();
    for (key, line, raw) in keys {
        let origin = Origin::File { path: path.to_owned(), line };
        match named(&key) {
            Some(setting) => {
                layer.insert(setting.name, Given { raw, origin });
            }
            None => problems.push(Problem {
                place: origin.spell(&key),
                what: "unknown key".to_owned(),
                advice: did_you_mean(&key, ALL.map(|setting| setting.name)).map_or_else(
                    || "`meshgate run --help` lists the flags, whose names are the keys".to_owned(),
                    |name| format!("did you mean `{name}`?"),
                ),
            }),
        }
    }
    layer
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The file's top level: key, line, value. Keys that we do not know keep an empty value.
struct Keys(Vec<(String, u64, Raw)>);

impl<'de> serde::Deserialize<'de> for Keys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(KeysVisitor)
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("settings, one `name: value` a line")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
        let mut keys = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let raw = match named(&key.value).map(|setting| setting.shape) {
                Some(Shape::Text | Shape::Switch) => Raw::Text(map.next_value::<Option<String>>()?.unwrap_or_default()),
                Some(Shape::Pairs) => map.next_value::<PairsInFile>()?.0,
                None => {
                    map.next_value::<IgnoredAny>()?;
                    Raw::Text(String::new())
                }
            };
            keys.push((key.value, key.referenced.line(), raw));
        }
        Ok(Keys(keys))
    }
}

/// A mapping, or the text that Cilium's config map holds for one.
struct PairsInFile(Raw);

impl<'de> serde::Deserialize<'de> for PairsInFile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;

        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = PairsInFile;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a mapping such as `etcd.config: /path`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PairsInFile, E> {
                if text.contains('=') || text.starts_with('{') {
                    return Ok(PairsInFile(pairs(text)));
                }
                Err(E::custom("a mapping such as `etcd.config: /path` belongs here"))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PairsInFile, A::Error> {
                let mut found = Vec::new();
                while let Some(entry) = map.next_entry::<String, String>()? {
                    found.push(entry);
                }
                if found.is_empty() {
                    return Err(A::Error::custom("an empty mapping says nothing"));
                }
                Ok(PairsInFile(Raw::Pairs(found)))
            }
        }

        deserializer.deserialize_any(PairsVisitor)
    }
}
