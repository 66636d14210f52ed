//! Rooms that this crate may import.

/// Names of our crates in `[dependencies]` of the manifest: those that the workspace holds as a path.
fn imports() -> Vec<&'static str> {
    let workspace = include_str!("../../../Cargo.toml");
    let ours = |name: &&str| workspace.contains(&format!("\n{name} = {{ path = "));
    let (_, dependencies) = include_str!("../Cargo.toml").split_once("[dependencies]\n").unwrap();
    let dependencies = dependencies.split_once("\n[").map_or(dependencies, |d| d.0);
    let mut names: Vec<&str> = dependencies
        .lines()
        .filter_map(|l| l.split(['.', ' ']).next())
        .filter(|n| !n.is_empty())
        .filter(ours)
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn place_imports_models_and_physics_and_no_published_system() {
    assert_eq!(imports(), ["fabric", "predict", "topology"]);
}
