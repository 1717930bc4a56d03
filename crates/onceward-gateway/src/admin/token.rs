//! The tokens of the admin listener.
//!
//! Where no token is configured, one operator token is generated and kept in a file that only its owner can read, where
//! commands on the same machine find it: `STORE.token` beside a SQLite store, and for any other
//! `onceward-PORT.token` in the user's runtime directory, if there is one.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use onceward::{engine::EntropyUnavailable, plumbing::random_bytes};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::settings::{Role, Settings, StoreUrl, Token};

/// Identifies a leaked secret as a token of Onceward.
const PREFIX: &str = "onceward_";
/// 256 bits cannot be guessed.
const RANDOM_BYTES: usize = 32;
/// The name of the generated token in the audit trail.
const GENERATED: &str = "operator";
/// A shorter token could be guessed.
const LEAST_BYTES: usize = 16;
/// A token file holds one line; a longer file is another one.
const FILE_BYTES_MAX: u64 = 1024;

/// The warning where every change will be refused.
pub const NO_PLACE: &str = "no token is configured and there is no place to keep one: every change of an operation is refused; configure [[admin.tokens]]";

/// A token that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// A configured token could be guessed.
    #[error(
        "the token {name:?} has {found} bytes, but needs at least {LEAST_BYTES}: make one with `openssl rand -hex 32`"
    )]
    Short {
        /// The token's name.
        name: String,
        /// How long it is.
        found: usize,
    },
    /// Two configured tokens are the same.
    #[error(
        "the tokens {first:?} and {second:?} are the same: give each its own, so that the audit trail can tell them apart"
    )]
    Same {
        /// The token's name.
        first: String,
        /// The other token's name.
        second: String,
    },
    /// Others can read the file.
    #[error("{path} can be read by others (mode {mode:o}): run `chmod 600 {path}`, or delete it and send SIGHUP or restart to get a new token", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file holds something else.
    #[error("{path} does not hold a token: delete it and send SIGHUP or restart to get a new one", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or made.
    #[error("the token file {path} cannot be used: {error}; configure [[admin.tokens]], or give this user the right to write there", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// No token can be made.
    #[error(transparent)]
    Entropy(#[from] EntropyUnavailable),
    /// No operator token exists.
    #[error(
        "there is no operator token: configure one under [[admin.tokens]], or start the gateway first, which makes one"
    )]
    None,
}

/// Every valid token, as hashes.
// Compared only with another configuration's, never with what a client sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    known: Vec<Known>,
}

#[derive(Clone, PartialEq, Eq)]
struct Known {
    name: String,
    role: Role,
    hash: [u8; 32],
}

/// The owner of a token that a request has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The token's name.
    pub name: String,
    /// What it allows.
    pub role: Role,
}

impl Tokens {
    /// The configured tokens, or the one that was generated for this store, or a new one. Call it when the store is open, so that
    /// no other process generates one at the same time.
    pub fn of(settings: &Settings) -> Result<Self, TokenError> {
        if !settings.admin.tokens.is_empty() {
            return Self::new(&settings.admin.tokens);
        }
        let token = match path(settings) {
            Some(path) => read_or_make(&path)?,
            None => {
                tracing::warn!("{NO_PLACE}");
                generate()?
            }
        };
        Self::new(&[Token { name: GENERATED.to_owned(), role: Role::Operator, token }])
    }

    /// Hashes these tokens, and refuses them if one is short or two are the same.
    pub fn new(tokens: &[Token]) -> Result<Self, TokenError> {
        let mut known: Vec<Known> = Vec::with_capacity(tokens.len());
        for Token { name, role, token } in tokens {
            if token.len() < LEAST_BYTES {
                return Err(TokenError::Short { name: name.clone(), found: token.len() });
            }
            let hash = hash(token.as_bytes());
            if let Some(first) = known.iter().find(|known| known.hash == hash) {
                return Err(TokenError::Same { first: first.name.clone(), second: name.clone() });
            }
            known.push(Known { name: name.clone(), role: *role, hash });
        }
        Ok(Self { known })
    }

    /// Whose token this is. Takes as long for a wrong one as for a right one, and as long for the first as for the last.
    pub fn caller(&self, shown: &[u8]) -> Option<Caller> {
        let shown = hash(shown);
        let mut found = None;
        for known in &self.known {
            if bool::from(known.hash.ct_eq(&shown)) {
                found = Some(known);
            }
        }
        found.map(|known| Caller { name: known.name.clone(), role: known.role })
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.known.iter().map(|known| (&known.name, known.role))).finish()
    }
}

/// The operator token of a gateway with these settings, for commands on the same machine.
pub fn find(settings: &Settings) -> Result<String, TokenError> {
    let configured = settings.admin.tokens.iter().find(|token| token.role == Role::Operator);
    match configured {
        Some(token) => Ok(token.token.clone()),
        None if !settings.admin.tokens.is_empty() => Err(TokenError::None),
        None => path(settings).map_or(Err(TokenError::None), |path| read(&path)?.ok_or(TokenError::None)),
    }
}

/// The file that the generated token of these settings is kept in.
pub fn path(settings: &Settings) -> Option<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    path_in(&settings.store, settings.admin.listen, runtime.as_deref())
}

/// The file that a store's generated token is kept in. `runtime` is the user's runtime directory.
pub fn path_in(store: &StoreUrl, listen: SocketAddr, runtime: Option<&Path>) -> Option<PathBuf> {
    match store.file() {
        Some(file) => {
            let mut name = file.as_os_str().to_owned();
            name.push(".token");
            Some(name.into())
        }
        None => Some(runtime?.join(format!("onceward-{}.token", listen.port()))),
    }
}

/// The token in a file. If there is no file, a token is generated and written.
pub fn read_or_make(path: &Path) -> Result<String, TokenError> {
    if let Some(token) = read(path)? {
        return Ok(token);
    }
    let token = generate()?;
    keep(path, &token).map_err(|error| TokenError::File { path: path.to_owned(), error })?;
    Ok(token)
}

fn read(path: &Path) -> Result<Option<String>, TokenError> {
    let failed = |error| TokenError::File { path: path.to_owned(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    private(path, &file)?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    let token = String::from_utf8(text).ok().map(|text| text.trim_end().to_owned());
    let digits = token.as_deref().and_then(|token| token.strip_prefix(PREFIX));
    let whole = digits.is_some_and(|digits| {
        digits.len() == 2 * RANDOM_BYTES && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    match token {
        Some(token) if whole => Ok(Some(token)),
        Some(_) | None => Err(TokenError::Content { path: path.to_owned() }),
    }
}

#[cfg(unix)]
fn private(path: &Path, file: &File) -> Result<(), TokenError> {
    use std::os::unix::fs::PermissionsExt as _;
    let found = file.metadata().map_err(|error| TokenError::File { path: path.to_owned(), error })?;
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 { Err(TokenError::Open { path: path.to_owned(), mode }) } else { Ok(()) }
}

/// On other systems the file inherits the directory's permissions.
#[cfg(not(unix))]
fn private(_: &Path, _: &File) -> Result<(), TokenError> {
    Ok(())
}

/// Writes a draft and renames it, so that a crash leaves no partial token.
fn keep(path: &Path, token: &str) -> std::io::Result<()> {
    let mut name = path.to_owned().into_os_string();
    name.push(".new");
    let draft = PathBuf::from(name);
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&draft)?;
    file.write_all(format!("{token}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

fn generate() -> Result<String, TokenError> {
    let bytes: [u8; RANDOM_BYTES] = random_bytes()?;
    Ok(bytes.iter().fold(PREFIX.to_owned(), |token, byte| format!("{token}{byte:02x}")))
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}
