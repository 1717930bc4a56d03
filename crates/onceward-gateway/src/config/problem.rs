//! Errors in a configuration, and where to correct them.

use std::fmt;

/// Where a value came from, which is where to change it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// It was not set.
    Default,
    /// A line of a file.
    File {
        /// The file's name, as it was given.
        name: String,
        /// Counted from one; `None` where the problem concerns the whole file.
        line: Option<usize>,
    },
    /// A variable of the environment.
    Variable(String),
    /// A flag of the command line, without its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line: Some(line) } => write!(f, "{name}:{line}"),
            Self::File { name, line: None } => f.write_str(name),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One error, with what to do about it. Never repeats a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where to change it.
    pub origin: Origin,
    /// Whole sentences that name the key.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Default => f.write_str(&self.text),
            Origin::File { .. } | Origin::Variable(_) | Origin::Flag(_) => {
                write!(f, "{}: {}", self.origin, self.text)
            }
        }
    }
}

/// Every error that was found, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    /// The problems, at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    /// `Ok` where there is no problem.
    pub(super) fn unless_empty(mut problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort_by(|left, right| left.origin.cmp(&right.origin));
        problems.dedup();
        Err(Self(problems))
    }
}

impl From<Problem> for ConfigErrors {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
