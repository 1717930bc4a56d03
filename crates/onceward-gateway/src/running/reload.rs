//! Reloads routes, the certificate and tokens while requests are under way, all or nothing.

use std::fmt;
use std::sync::Arc;

use super::{Running, layer, warn_of_expiry};
use crate::admin::Tokens;
use crate::admin::token::{self, TokenError};
use crate::front::tls::{Certificate, TlsError};
use crate::settings::Settings;

/// Why a reload was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// Only routes, the certificate and tokens can be changed while requests are under way.
    #[error(
        "{} cannot change while the gateway runs: restart it, or take the change back",
        .settings.join(", ")
    )]
    NeedsRestart {
        /// Which keys have changed.
        settings: Vec<&'static str>,
    },
    /// The routes cannot be used.
    #[error("the routes cannot be used: {0}")]
    Layer(#[from] onceward::http::LayerError),
    /// The certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Certificate(#[from] TlsError),
    /// The tokens cannot be used.
    #[error("the tokens cannot be used: {0}")]
    Tokens(#[from] TokenError),
}

/// What a reload changed, and what was the same.
#[derive(Debug, Default)]
pub struct Reloaded {
    changed: Vec<String>,
    unchanged: Vec<String>,
}

impl Reloaded {
    fn note(&mut self, part: impl ToString, change: Change) {
        match change {
            Change::New => self.changed.push(part.to_string()),
            Change::None => self.unchanged.push(part.to_string()),
        }
    }
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unchanged = self.unchanged.join(", ");
        match (self.changed.join(", "), unchanged.as_str()) {
            (changed, _) if changed.is_empty() => write!(f, "reloaded: nothing; unchanged: {unchanged}"),
            (changed, "") => write!(f, "reloaded: {changed}"),
            (changed, _) => write!(f, "reloaded: {changed}; unchanged: {unchanged}"),
        }
    }
}

/// Whether a part of the configuration changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    New,
    None,
}

impl Change {
    fn between<T: PartialEq>(old: &T, new: &T) -> Self {
        if old == new { Self::None } else { Self::New }
    }
}

impl Running {
    /// Replaces routes, certificate and tokens, all or nothing, and reads the files again that these settings name. Requests that
    /// have begun keep the old routes, and open connections keep the old certificate.
    pub fn reload(&mut self, settings: Settings) -> Result<Reloaded, ReloadError> {
        let changed = self.settings.fixed_that_differ(&settings);
        if !changed.is_empty() {
            return Err(ReloadError::NeedsRestart { settings: changed });
        }
        // Everything is read before anything is replaced.
        let layer = layer(&self.engine, &settings)?;
        let certificate = settings.tls.as_ref().map(Certificate::load).transpose()?;
        let tokens = self.tokens_of(&settings)?;

        let mut reloaded = Reloaded::default();
        let change = Change::between(&self.settings.routes, &settings.routes);
        reloaded.note("routes", change);
        if change == Change::New {
            self.gateway.replace(layer);
        }
        if let (Some(shown), Some(certificate)) = (&self.certificate, certificate) {
            let change = Change::between(&**shown.load(), &certificate);
            reloaded.note(&certificate, change);
            warn_of_expiry(&certificate);
            // An equal certificate is not replaced, so that clients can resume their TLS sessions.
            if change == Change::New {
                shown.store(Arc::new(certificate));
            }
        }
        reloaded.note("tokens", Change::between(&**self.tokens.load(), &tokens));
        self.tokens.store(Arc::new(tokens));
        self.settings = settings;
        Ok(reloaded)
    }

    fn tokens_of(&self, settings: &Settings) -> Result<Tokens, TokenError> {
        let none = self.settings.admin.tokens.is_empty() && settings.admin.tokens.is_empty();
        // A generated token that could not be kept in a file is not replaced.
        if none && token::path(settings).is_none() {
            return Ok(Tokens::clone(&self.tokens.load()));
        }
        Tokens::of(settings)
    }
}
