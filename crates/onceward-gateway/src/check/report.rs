//! What a check found, as text for people and as JSON for programs.

use std::fmt;

use serde_json::json;

use crate::config::ConfigErrors;

/// The findings, in the order of the checks.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Finding>);

#[derive(Debug)]
struct Finding {
    level: Level,
    about: &'static str,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Ok,
    Warning,
    Error,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl Report {
    pub(crate) fn failed(&self) -> bool {
        self.0.iter().any(|finding| finding.level == Level::Error)
    }

    pub(crate) fn say(&mut self, level: Level, about: &'static str, text: impl Into<String>) {
        self.0.push(Finding { level, about, text: text.into() });
    }

    pub(super) fn configuration(&mut self, errors: &ConfigErrors) {
        for problem in errors.problems() {
            self.say(Level::Error, "configuration", problem.to_string());
        }
    }

    pub(crate) fn to_json(&self) -> String {
        let finding = |found: &Finding| json!({ "level": found.level.name(), "about": found.about, "text": found.text });
        let findings: Vec<_> = self.0.iter().map(finding).collect();
        format!("{:#}\n", json!({ "ok": !self.failed(), "findings": findings }))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { level, about, text } in &self.0 {
            writeln!(f, "{:8} {about}: {text}", level.name())?;
        }
        let count = |level| self.0.iter().filter(|finding| finding.level == level).count();
        match (count(Level::Error), count(Level::Warning)) {
            (0, 0) => writeln!(f, "All is well."),
            (0, warnings) => writeln!(f, "It can start. Worth a look: {warnings}."),
            (errors, _) => writeln!(f, "To be fixed: {errors}."),
        }
    }
}
