//! Layers joined by precedence, and values read with their types; whatever is wrong is collected, not thrown.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::Effective;
use super::error::{Origin, Problem};
use super::settings::{ALL, Setting};
use super::sources::{Given, Layer, Raw};

/// What is wrong with a value, and what to do; the place is the resolver's to add.
pub(super) struct Wrong {
    pub what: String,
    pub advice: String,
}

impl Wrong {
    pub fn new(what: impl Display, advice: impl Display) -> Self {
        Self { what: what.to_string(), advice: advice.to_string() }
    }
}

pub(super) struct Resolver {
    given: Layer,
    pub problems: Vec<Problem>,
}

impl Resolver {
    /// `layers` from the weakest to the strongest.
    pub fn new(layers: [Layer; 3], problems: Vec<Problem>) -> Self {
        Self { given: layers.into_iter().flatten().collect(), problems }
    }

    pub fn origin(&self, setting: &Setting) -> Origin {
        self.given.get(setting.name).map_or(Origin::Default, |given| given.origin.clone())
    }

    /// Where a setting was said, with its value, as the user wrote it.
    fn place(&self, setting: &Setting) -> String {
        match self.given.get(setting.name) {
            Some(Given { raw: Raw::Text(text), origin: origin @ Origin::Flag }) => {
                format!("{} {text}", origin.spell(setting.name))
            }
            Some(Given { raw: Raw::Text(text), origin: origin @ Origin::Env }) => {
                format!("{}={text}", origin.spell(setting.name))
            }
            Some(Given { raw: Raw::Text(text), origin: origin @ Origin::File { .. } }) => {
                format!("{}: {text}", origin.spell(setting.name))
            }
            _ => self.origin(setting).spell(setting.name),
        }
    }

    pub fn wrong(&mut self, setting: &Setting, Wrong { what, advice }: Wrong) {
        let problem = Problem { place: self.place(setting), what, advice };
        self.problems.push(problem);
    }

    /// The text of a setting, or of its default; an empty one counts as none.
    fn text(&self, setting: &Setting) -> Option<String> {
        let text = match self.given.get(setting.name) {
            Some(Given { raw: Raw::Text(text), .. }) => text.trim(),
            // Only settings of that shape are given as pairs, and they are read by `pairs`.
            Some(Given { raw: Raw::Pairs(_), .. }) => return None,
            None => setting.default?,
        };
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// A value that has a default. `None` when it is wrong, which is noted.
    pub fn value<T>(&mut self, setting: &Setting, parse: impl FnOnce(&str) -> Result<T, Wrong>) -> Option<T> {
        let Some(text) = self.text(setting).or_else(|| setting.default.map(str::to_owned)) else {
            self.wrong(setting, Wrong::new("no value is given", format!("give a {}", setting.value)));
            return None;
        };
        parse(&text).map_err(|wrong| self.wrong(setting, wrong)).ok()
    }

    pub fn number<T>(&mut self, setting: &Setting, range: RangeInclusive<T>) -> Option<T>
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        let advice = format!("give a whole number from {} to {}", range.start(), range.end());
        self.value(setting, |text| match text.parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            Ok(_) => Err(Wrong::new("out of range", advice)),
            Err(_) => Err(Wrong::new("not such a number", advice)),
        })
    }

    pub fn time(&mut self, setting: &Setting, range: RangeInclusive<Duration>) -> Option<Duration> {
        self.value(setting, |text| time(setting, text, &range))
    }

    /// The same, or `never`, which is [`Duration::MAX`].
    pub fn time_or_never(&mut self, setting: &Setting, range: RangeInclusive<Duration>) -> Option<Duration> {
        self.value(setting, |text| if text == NEVER { Ok(Duration::MAX) } else { time(setting, text, &range) })
    }

    pub fn address(&mut self, setting: &Setting) -> Option<SocketAddr> {
        self.value(setting, |text| {
            text.parse().map_err(|_| {
                Wrong::new(
                    "not an IP address and a port",
                    format!(
                        "give both, such as {} (names are not resolved; 0.0.0.0 is every interface)",
                        setting.default.unwrap_or_default()
                    ),
                )
            })
        })
    }

    pub fn switch(&mut self, setting: &Setting) -> Option<bool> {
        self.value(setting, |text| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Wrong::new("neither true nor false", "give one of them")),
        })
    }

    /// A path that may be absent.
    pub fn path(&self, setting: &Setting) -> Option<PathBuf> {
        self.text(setting).map(PathBuf::from)
    }

    pub fn pairs(&self, setting: &Setting) -> &[(String, String)] {
        match self.given.get(setting.name) {
            Some(Given { raw: Raw::Pairs(pairs), .. }) => pairs,
            _ => &[],
        }
    }

    /// Every setting with the value that holds and where it comes from.
    pub fn effective(&self) -> Vec<Effective> {
        let value = |setting: &Setting| match self.given.get(setting.name).map(|given| &given.raw) {
            Some(Raw::Pairs(pairs)) => {
                pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
            }
            _ => self.text(setting).unwrap_or_default(),
        };
        ALL.into_iter()
            .map(|setting| Effective { name: setting.name, value: value(setting), origin: self.origin(setting) })
            .collect()
    }
}

/// In place of a time.
const NEVER: &str = "never";

fn time(setting: &Setting, text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, Wrong> {
    let show = humantime::format_duration;
    let or_never = if setting.default == Some(NEVER) { ", or never" } else { "" };
    let advice = format!("give a time from {} to {}{or_never}", show(*range.start()), show(*range.end()));
    match humantime::parse_duration(text) {
        Ok(time) if range.contains(&time) => Ok(time),
        Ok(_) => Err(Wrong::new("out of range", advice)),
        Err(_) => {
            let example = setting.default.filter(|default| *default != NEVER).unwrap_or("5s");
            Err(Wrong::new("not a time", format!("{advice}, with a unit, such as {example}")))
        }
    }
}
