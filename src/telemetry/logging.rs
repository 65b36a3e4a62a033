//! Logs: text or JSON on standard error, and a limit for lines that repeat.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people; coloured on a terminal.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// What is logged: a level, or directives of `tracing-subscriber` such as `info,meshgate::kvstore=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// The words that are levels.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl LogFilter {
    /// Checks a level or directives.
    ///
    /// # Errors
    /// What is wrong, in plain words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        // The filter takes any single word for the name of a module, a mistyped level too: nothing would be logged at all.
        let directive_is_plausible = |part: &str| part.contains('=') || LEVELS.contains(&part.to_lowercase().as_str());
        if text.is_empty() || !text.split(',').map(str::trim).all(directive_is_plausible) {
            return Err(format!(
                "neither a level ({}) nor directives like info,meshgate::kvstore=debug",
                LEVELS.join(", ")
            ));
        }
        EnvFilter::builder().parse(text).map_err(|error| format!("not a log filter: {error}"))?;
        Ok(Self(if text.contains('=') { text.to_owned() } else { text.to_lowercase() }))
    }

    /// A bare level is meant for our own lines; what libraries say below a warning helps their authors only (and HTTP/2
    /// frames at `debug` would show tokens).
    fn directives(&self) -> String {
        if LEVELS.contains(&self.0.as_str()) { format!("warn,meshgate={}", self.0) } else { self.0.clone() }
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

/// Starts logging for the whole process; once.
///
/// # Errors
/// Logging was started before.
pub fn init(format: LogFormat, filter: &LogFilter) -> Result<(), tracing_subscriber::util::TryInitError> {
    use tracing_subscriber::util::SubscriberInitExt as _;

    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter.directives()))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    match format {
        LogFormat::Text => builder.finish().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
    }
}

/// At most some lines a period for each key; what was left out is told with the next line that is not.
///
/// ```
/// # use meshgate::telemetry::LogLimiter;
/// # use std::time::Duration;
/// # let (reason, limiter) = ("not-utf8", LogLimiter::new(5, Duration::from_secs(60)));
/// if let Some(suppressed) = limiter.allow(reason) {
///     tracing::warn!(reason, suppressed, "entry refused");
/// }
/// ```
#[derive(Debug)]
pub struct LogLimiter {
    lines: u32,
    period: Duration,
    keys: Mutex<HashMap<String, Window>>,
}

#[derive(Debug)]
struct Window {
    begin: Instant,
    logged: u32,
    suppressed: u64,
}

impl LogLimiter {
    /// Keys remembered at a time. Beyond it, keys whose period is over are forgotten; if none is, all new ones share a limit.
    const MAX_KEYS: usize = 1024;
    /// The key that those share.
    const OTHERS: &str = "";

    /// At most `lines` each `period` for each key.
    #[must_use]
    pub fn new(lines: u32, period: Duration) -> Self {
        Self { lines, period, keys: Mutex::default() }
    }

    /// `Some(number left out before)` when the line may be logged.
    pub fn allow(&self, key: &str) -> Option<u64> {
        self.allow_at(key, Instant::now())
    }

    fn allow_at(&self, key: &str, now: Instant) -> Option<u64> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |window: &Window| now.duration_since(window.begin) >= self.period;
        let mut key = key;
        if keys.len() >= Self::MAX_KEYS && !keys.contains_key(key) {
            keys.retain(|_, window| !over(window));
            if keys.len() >= Self::MAX_KEYS {
                key = Self::OTHERS;
            }
        }
        let Some(window) = keys.get_mut(key) else {
            keys.insert(key.to_owned(), Window { begin: now, logged: 1, suppressed: 0 });
            return Some(0);
        };
        if over(window) {
            window.begin = now;
            window.logged = 0;
        }
        if window.logged >= self.lines {
            window.suppressed += 1;
            return None;
        }
        window.logged += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_each_key_and_tells_what_was_left_out() {
        let limiter = LogLimiter::new(2, Duration::from_secs(10));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(limiter.allow_at("a", at(0)), Some(0));
        assert_eq!(limiter.allow_at("a", at(1)), Some(0));
        assert_eq!(limiter.allow_at("a", at(2)), None);
        assert_eq!(limiter.allow_at("b", at(2)), Some(0), "another key has its own limit");
        assert_eq!(limiter.allow_at("a", at(9)), None);
        assert_eq!(limiter.allow_at("a", at(10)), Some(2), "a new period tells of the two left out");
        assert_eq!(limiter.allow_at("a", at(11)), Some(0));
    }

    #[test]
    fn remembers_a_bounded_number_of_keys() {
        let limiter = LogLimiter::new(1, Duration::from_secs(10));
        let begin = Instant::now();
        for key in 0..LogLimiter::MAX_KEYS {
            assert_eq!(limiter.allow_at(&key.to_string(), begin), Some(0));
        }
        assert_eq!(limiter.allow_at("new", begin), Some(0));
        assert_eq!(limiter.allow_at("newer", begin), None, "new keys share one limit");
        assert_eq!(limiter.allow_at("newest", begin + Duration::from_secs(10)), Some(0), "old keys make room");
        assert_eq!(limiter.keys.lock().expect("not poisoned").len(), 1);
    }

    #[test]
    fn takes_levels_and_directives_and_nothing_else() {
        for good in ["info", "DEBUG", "off", "info,meshgate::kvstore=debug", "meshgate[peer]=trace"] {
            LogFilter::parse(good).expect(good);
        }
        for bad in ["", "inof", "info,verbose", "meshgate=loud"] {
            LogFilter::parse(bad).expect_err(bad);
        }
        assert_eq!(LogFilter::parse("debug").expect("a level").directives(), "warn,meshgate=debug");
    }
}
