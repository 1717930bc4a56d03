//! The lines that a process prints, read in the background so that it never waits for a reader.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc;

use super::wait::LONGEST_WAIT;

/// One output of a process, line by line.
pub struct Output(mpsc::Receiver<String>);

impl Output {
    pub fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // A line is dropped when the test has ended.
            BufReader::new(stream).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        Self(lines)
    }

    /// An output that is closed.
    pub fn none() -> Self {
        Self(mpsc::channel().1)
    }

    /// The next line. Nothing once the process has closed this output.
    pub fn next(&self) -> Option<String> {
        match self.0.recv_timeout(LONGEST_WAIT) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("waited {LONGEST_WAIT:?} for a line of a process, or for its end")
            }
        }
    }

    /// The first value that `find` makes of a line. Otherwise the lines that were printed until the output was closed.
    pub fn find<T>(&self, find: impl Fn(&str) -> Option<T>) -> Result<T, Vec<String>> {
        let mut before = Vec::new();
        loop {
            let Some(line) = self.next() else { return Err(before) };
            if let Some(value) = find(&line) {
                return Ok(value);
            }
            before.push(line);
        }
    }

    /// What is printed until the process closes this output.
    pub fn rest(&self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).collect()
    }
}
