//! Pastes the lines of the demo into a shell, and holds what they show to what was promised.

use std::net::SocketAddr;
use std::time::Duration;

use onceward::plumbing::time::sleep;
use tokio::process::Command;
use tokio::sync::mpsc;

use super::console::Console;
use super::script::{GIVE_UP_AFTER_SECONDS, Line, Step, after_the_verdict, before_the_verdict};
use crate::Failure;

/// Far longer than a dead letter takes.
const DEAD_LETTER_PATIENCE: Duration = Duration::from_secs(10 * GIVE_UP_AFTER_SECONDS);

/// Plays every step. `dead_letters` has the line that resolves each dead letter.
pub(super) async fn play(
    console: &Console,
    gateway: SocketAddr,
    dead_letters: &mut mpsc::Receiver<String>,
) -> Result<(), Failure> {
    let mut number = 0;
    for step in before_the_verdict(gateway) {
        number += 1;
        play_step(console, number, &step).await?;
    }
    let resolve = tokio::select! {
        biased;
        Some(resolve) = dead_letters.recv() => resolve,
        () = sleep(DEAD_LETTER_PATIENCE) => {
            return Err(format!("no dead letter was announced within {DEAD_LETTER_PATIENCE:?}, although one was promised").into());
        }
    };
    number += 1;
    let says = "A person has looked into the books of the bank, and pastes the line from above:";
    let verdict = Line { command: resolve, shows: &["\"completed\""] };
    play_step(console, number, &Step { says, lines: vec![verdict] }).await?;
    for step in after_the_verdict(gateway) {
        number += 1;
        play_step(console, number, &step).await?;
    }
    Ok(())
}

async fn play_step(console: &Console, number: usize, step: &Step) -> Result<(), Failure> {
    console.say(format_args!("\n{number}. {}", step.says));
    for line in &step.lines {
        console.say(format_args!("   $ {}", line.command));
        let output = Command::new("sh").args(["-c", &line.command]).output().await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().for_each(|line| console.say(format_args!("     {line}")));
        if let Some(missing) = line.shows.iter().find(|shows| !text.contains(**shows)) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("this line should have shown {missing:?}. It needs curl. {said}").into());
        }
    }
    Ok(())
}
