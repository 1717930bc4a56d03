//! Prometheus' own tool, which checks the alerts.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{has, root, run};
use crate::test::refresh_packages;

/// What Debian's package of Prometheus has it as.
const PROGRAM: &str = "usr/bin/promtool";

/// The program: the machine's, or that of Debian's package, unpacked into a folder of its own. To install the package would start
/// a server.
pub fn install() -> Result<PathBuf, Box<dyn std::error::Error + Send + Sync>> {
    if has("promtool") {
        return Ok("promtool".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = std::path::absolute(target)?.join("promtool");
    let program = folder.join(PROGRAM);
    if !program.exists() {
        println!(
            "promtool is missing (it checks the alerts in deploy/prometheus): unpacking Debian's prometheus"
        );
        unpack(&folder).map_err(|error| {
            format!("{error}; install promtool with your own package manager and run this again")
        })?;
    }
    Ok(program)
}

fn unpack(folder: &Path) -> crate::Done {
    std::fs::create_dir_all(folder)?;
    // Where the lists of packages are there, this needs no rights.
    let download = || run(Command::new("apt-get").args(["download", "prometheus"]).current_dir(folder));
    download().or_else(|_| refresh_packages().and_then(|()| download()))?;
    for entry in std::fs::read_dir(folder)? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(folder))?;
            std::fs::remove_file(package)?;
        }
    }
    Ok(())
}
