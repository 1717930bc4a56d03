//! `onceward`: the gateway and its commands.

fn main() {}
