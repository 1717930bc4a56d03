//! `onceward check`: tests everything that can be tested before the gateway is started, and changes nothing.

mod report;
mod serving;

use std::time::Duration;

pub(crate) use self::report::{Level, Report};

use crate::config::{Loaded, Sources};
use crate::proxy::{self, ExamineError, ProxyError};
use crate::settings::Settings;
use crate::stores;

/// Long enough for a far network, short enough for a person who waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// Checks the configuration, and then what it names. A wrong configuration is a finding too.
pub(crate) async fn run(sources: &Sources) -> Report {
    let mut report = Report::default();
    let Loaded { settings, advice, .. } = match sources.load() {
        Ok(loaded) => loaded,
        Err(errors) => {
            report.configuration(&errors);
            return report;
        }
    };
    let name =
        sources.file().map_or("flags, variables and defaults".to_owned(), |path| path.display().to_string());
    report.say(Level::Ok, "configuration", format!("{name} can be used"));
    for problem in advice {
        report.say(Level::Warning, "configuration", problem.to_string());
    }
    serving::run(&settings, &mut report).await;
    stores::check(&settings, &mut report).await;
    upstream(&settings, &mut report).await;
    report
}

/// Whether the upstream speaks HTTP/1.1. One that cannot be reached is only a warning: it may be started later.
async fn upstream(settings: &Settings, report: &mut Report) {
    let authority = &settings.upstream.authority;
    let examined = tokio::time::timeout(PATIENCE, proxy::examine(&settings.upstream, &settings.limits));
    let (level, text) = match examined.await {
        Ok(Ok(())) => (Level::Ok, format!("{authority} speaks HTTP/1.1")),
        Ok(Err(ExamineError::Upstream(error))) => (Level::Error, error.to_string()),
        Ok(Err(ExamineError::Proxy(ProxyError::OtherProtocol { speaks }))) => {
            (Level::Error, format!("{authority} {speaks}: no request would be taken"))
        }
        Ok(Err(ExamineError::Proxy(error @ ProxyError::Broken { .. }))) => {
            (Level::Warning, format!("{authority} took `OPTIONS *`, and did not answer in HTTP/1.1: {error}"))
        }
        Ok(Err(ExamineError::Proxy(error))) => (Level::Warning, error.to_string()),
        Err(_) => (Level::Warning, format!("{authority} did not answer `OPTIONS *` within {PATIENCE:?}")),
    };
    report.say(level, "upstream", text);
}
