//! The secret file `STORE.secret`. It is created for a new store, so that reading the database alone confirms no guess about
//! keys, callers or bodies.
//!
//! Ids are hashed with the secret, so it belongs to the store for good: a store that was used with a secret is worthless
//! without it, and a store that was used without one cannot get one later.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use onceward::store::{Filter, Scan, StoreError, Which};
use onceward::{
    Identity, Secret,
    engine::{EntropyUnavailable, Recognition},
    plumbing::random_bytes,
};

use crate::SqliteStore;

/// 256 bits, as many as the hashes that it keys.
const RANDOM_BYTES: usize = 32;
/// The rights of a file's group, and of everyone else.
const OF_GROUP: u32 = 0o070;
const OF_OTHERS: u32 = 0o007;

/// Why a secret cannot be read or created.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Every user of the machine can read the file.
    #[error(
        "{} can be read by every user of this machine (mode {mode:o}), and with it guesses about the store can be confirmed: run `chmod 600` on it",
        path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file does not hold a secret.
    #[error(
        "{} does not hold the secret of a store (64 hexadecimal digits): put the store's own file back from its backup",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// There is no secret, and the store was not used without one under this identity.
    #[error(
        "{} is missing, no secret is given, and {} was not used without one under this namespace and scope: every stored key would be forgotten and retries would execute again, so accepting an identity change does not help here. Restore what is missing: put the file back from the backup that the store is from, or configure the secret that the store was used with. If the store was used without a secret, go back to its namespace and scope. If the secret is lost for good, start with a new store: move {} and the files beside it to another folder",
        secret.display(),
        store.display(),
        store.display()
    )]
    Missing {
        /// Where the secret should be.
        secret: PathBuf,
        /// The store that it belongs to.
        store: PathBuf,
    },
    /// The file cannot be read or created.
    #[error("the secret in {} cannot be read or made: {error}. Give this user the right to, or configure a secret", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// No random bytes are available for a new secret.
    #[error(transparent)]
    Entropy(#[from] EntropyUnavailable),
    /// The store could not be read to find out whether it is new.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SqliteStore {
    /// The path of a store's secret: `STORE.secret`.
    pub fn secret_path(store: &Path) -> PathBuf {
        let mut name = store.to_owned().into_os_string();
        name.push(".secret");
        name.into()
    }

    /// The secret beside the store, if there is one. Creates none.
    ///
    /// `identity` is the engine's, without a secret. If the store was used under another identity, its secret is lost. That is an
    /// error, because an engine that accepts changes of the identity would forget every key.
    pub async fn secret(&self, identity: &Identity) -> Result<Option<Secret>, SecretError> {
        let path = Self::secret_path(self.path());
        if let Some(kept) = read(&path)? {
            if let Some(advice) = Self::secret_advice(self.path()) {
                tracing::warn!("{advice}");
            }
            return Ok(Some(kept));
        }
        match identity.recognised_by(self).await? {
            Recognition::New | Recognition::Known => Ok(None),
            Recognition::Other => Err(SecretError::Missing { secret: path, store: self.path().to_owned() }),
        }
    }

    /// The same, but creates a secret if the store has no records. `None` if the store was used without one.
    ///
    /// Pass it to [`Identity::with_secret`] before the engine is opened. It is on the disk when this
    /// returns, and so before the engine writes its first record.
    pub async fn secret_or_new(&self, identity: &Identity) -> Result<Option<Secret>, SecretError> {
        let kept = self.secret(identity).await?;
        if kept.is_some() || !self.is_empty().await? {
            return Ok(kept);
        }
        let path = Self::secret_path(self.path());
        make(&path)?;
        read(&path)
    }

    /// The identity with the secret of [`Self::secret_or_new`], to open an engine with. Unchanged where it has a secret already,
    /// and where the store was used without one.
    pub async fn keyed(&self, identity: Identity) -> Result<Identity, SecretError> {
        if identity.has_secret() {
            return Ok(identity);
        }
        let secret = self.secret_or_new(&identity).await?;
        Ok(secret.into_iter().fold(identity, Identity::with_secret))
    }

    /// A warning, if the group of the secret's file can read it. It is no error, because volumes of Kubernetes with an `fsGroup`
    /// have such files.
    pub fn secret_advice(store: &Path) -> Option<String> {
        let path = Self::secret_path(store);
        let mode = mode(&File::open(&path).ok()?).ok()?;
        (mode & OF_GROUP != 0).then(|| {
            format!(
                "{} can be read by its group (mode {mode:o}), and with it guesses about the store can be confirmed: run `chmod 600` \
                 on it, unless a volume sets that mode",
                path.display()
            )
        })
    }

    /// Whether the store holds no record at all.
    pub async fn is_empty(&self) -> Result<bool, StoreError> {
        let page =
            self.scan_now(Scan { which: Which::Filter(Filter::default()), after: None, limit: 1 }).await?;
        Ok(page.entries.is_empty() && page.next.is_none())
    }
}

fn read(path: &Path) -> Result<Option<Secret>, SecretError> {
    let failed = |error| SecretError::File { path: path.to_owned(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    private(path, &file)?;
    let mut text = Vec::new();
    // A longer file is not a secret.
    file.take(4 * RANDOM_BYTES as u64).read_to_end(&mut text).map_err(failed)?;
    let digits = text.strip_suffix(b"\n").unwrap_or(&text);
    let whole = digits.len() == 2 * RANDOM_BYTES && digits.iter().all(u8::is_ascii_hexdigit);
    let secret = whole.then(|| Secret::new(digits).ok()).flatten();
    secret.map(Some).ok_or_else(|| SecretError::Content { path: path.to_owned() })
}

fn private(path: &Path, file: &File) -> Result<(), SecretError> {
    let mode = mode(file).map_err(|error| SecretError::File { path: path.to_owned(), error })?;
    if mode & OF_OTHERS != 0 { Err(SecretError::Open { path: path.to_owned(), mode }) } else { Ok(()) }
}

#[cfg(unix)]
fn mode(file: &File) -> io::Result<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(file.metadata()?.permissions().mode() & 0o777)
}

/// On other systems the directory's permissions protect the file.
#[cfg(not(unix))]
fn mode(_: &File) -> io::Result<u32> {
    Ok(0o600)
}

/// The hexadecimal digits themselves are the secret, so that a configuration can name the file: `secret = { file =
/// "STORE.secret" }`.
fn make(path: &Path) -> Result<(), SecretError> {
    let bytes: [u8; RANDOM_BYTES] = random_bytes()?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    keep(path, &digits).map_err(|error| SecretError::File { path: path.to_owned(), error })
}

/// Written to a draft first, synced, then renamed, and the directory synced: a crash leaves the whole secret or none, and no
/// store without its secret.
fn keep(path: &Path, digits: &str) -> io::Result<()> {
    let mut draft = path.to_owned().into_os_string();
    draft.push(".new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&draft)?;
    file.write_all(format!("{digits}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    // The store's path is absolute, so it has a parent directory.
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
