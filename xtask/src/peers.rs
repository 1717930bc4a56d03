//! The servers that people run their APIs on, installed in a folder of their own for the gateway's tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{root, run};
use crate::test::{JAVA, JETTY, NODE, NPM, PYTHON, install_missing, install_program};

/// What is installed, and with which words.
const SOURCES: &str = "crates/onceward-gateway/tests/peers";

/// What Debian's package of Jetty brings.
const JETTY_JAR: &str = "/usr/share/java/jetty9-server.jar";

/// Installs what is missing, and returns the folder: `python/bin` has uvicorn and gunicorn, `node_modules` has Express. Jetty is
/// where Debian puts it.
pub fn install() -> Result<PathBuf, Box<dyn std::error::Error + Send + Sync>> {
    install_missing(&[NODE, NPM, JAVA])?;
    if !Path::new(JETTY_JAR).exists() {
        install_program(&JETTY)?;
    }
    if !makes_environments() {
        install_program(&PYTHON)?;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = std::path::absolute(target)?.join("peers");
    std::fs::create_dir_all(&folder)?;
    once(&folder, "requirements.txt", |wanted| {
        let python = folder.join("python");
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&python))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
        run(Command::new(python.join("bin/python")).args(pip).arg(wanted))
    })?;
    once(&folder, "package.json", |wanted| {
        std::fs::copy(wanted, folder.join("package.json"))?;
        let npm = ["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"];
        run(Command::new("npm").args(npm).current_dir(&folder))
    })?;
    Ok(folder)
}

/// Whether there is a Python that can make an environment: Debian packs that part separately.
fn makes_environments() -> bool {
    Command::new("python3").args(["-c", "import ensurepip"]).status().is_ok_and(|status| status.success())
}

/// Installs what a file asks for, unless that was done. A copy of the file, written last, records what is installed.
fn once(folder: &Path, file: &str, install: impl FnOnce(&Path) -> crate::Done) -> crate::Done {
    let wanted = root().join(SOURCES).join(file);
    let installed = folder.join(format!("installed-{file}"));
    let text = std::fs::read_to_string(&wanted)?;
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == text) {
        return Ok(());
    }
    install(&wanted)?;
    Ok(std::fs::write(installed, text)?)
}
