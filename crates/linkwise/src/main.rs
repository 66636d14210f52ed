//! The command line of linkwise.
fn main() {}
