//! What is wrong with a configuration: one line each, with where it was said and what to do.

use std::fmt;
use std::path::PathBuf;

/// Where a setting's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On the command line.
    Flag,
    /// In the environment.
    Env,
    /// In the file, in that line.
    File {
        /// The file.
        path: PathBuf,
        /// Counted from 1; 0 where the parser does not tell.
        line: u64,
    },
    /// Nobody said anything.
    Default,
}

impl Origin {
    /// The setting as it is spelled there.
    pub(super) fn spell(&self, setting: &str) -> String {
        match self {
            Self::Flag => format!("--{setting}"),
            Self::Env => env_name(setting),
            Self::File { path, line } => format!("{}:{line}: {setting}", path.display()),
            Self::Default => setting.to_owned(),
        }
    }
}

/// The environment variable of a setting: `cluster-id` → `MESHGATE_CLUSTER_ID`.
#[must_use]
pub fn env_name(setting: &str) -> String {
    format!("{}{}", super::ENV_PREFIX, setting.to_uppercase().replace('-', "_"))
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Flag, variable, or file and line; as the user wrote it.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.what, self.advice)
    }
}

/// Everything that is wrong with a configuration, found in one go. Displays as one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// The known name that `given` most likely means, as advice.
pub(super) fn did_you_mean<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Two slips of the finger, or one word written with underscores; more is guessing.
    let given = given.trim_start_matches('-').to_lowercase().replace('_', "-");
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&given, name), name))
        .filter(|(distance, _)| *distance <= 2)
        .min()
        .map(|(_, name)| name)
}
