use clap::Parser;
#[derive(clap::Parser)]
struct A {
    #[command(flatten)]
    a: lab_validation::Args,
}
fn main() {
    if let Err(e) = lab_validation::run(A::parse().a) {
        panic!("{e:?}")
    }
}
