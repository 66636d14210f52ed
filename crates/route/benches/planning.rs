//! Planning time.
fn main() {
    divan::main();
}
