//! The configuration, from its text to settings or to what is wrong with it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod broken;
mod commands;
mod documents;
mod precedence;
mod schema;

use std::ffi::OsString;

use onceward_gateway::config::{Loaded, Sources};

/// A file's text, variables and flags, as a table of cases has them.
#[derive(Default)]
struct Given<'a> {
    file: Option<&'a str>,
    variables: &'a [(&'a str, &'a str)],
    flags: &'a [(&'a str, &'a [&'a str])],
}

impl Given<'_> {
    fn sources(&self, folder: &std::path::Path) -> Sources {
        let variables =
            self.variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let mut sources = Sources::new(variables);
        if let Some(text) = self.file {
            let path = folder.join("onceward.toml");
            std::fs::write(&path, text).unwrap();
            sources = sources.with_file(path);
        }
        for (path, values) in self.flags {
            sources = sources.with_flag(path, values.iter().map(|value| (*value).to_owned()).collect());
        }
        sources
    }

    fn load(&self) -> Result<Loaded, String> {
        let folder = tempfile::tempdir().unwrap();
        let prefix = format!("{}/", folder.path().display());
        self.sources(folder.path()).load().map_err(|errors| errors.to_string().replace(&prefix, ""))
    }

    fn show(&self) -> String {
        let folder = tempfile::tempdir().unwrap();
        let prefix = format!("{}/", folder.path().display());
        let shown = self.sources(folder.path()).show().unwrap();
        shown.to_string().replace(&prefix, "")
    }
}

/// Every case with what is said about it.
fn transcript(cases: &[&str]) -> String {
    transcript_with(&[], cases)
}

/// The same where these variables are set.
fn transcript_with(variables: &[(&str, &str)], cases: &[&str]) -> String {
    let mut text = String::new();
    for case in cases {
        let said = match (Given { file: Some(case), variables, flags: &[] }).load() {
            Ok(_) => panic!("nothing is wrong with\n{case}"),
            Err(said) => said,
        };
        text.push_str(&format!("{case}\n--->\n{said}\n\n========\n"));
    }
    text
}
