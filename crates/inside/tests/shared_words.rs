//! The words that the processes of a host share.

use inside::control::{CHUNK_BYTES_MAX, Chunk, Control, Path, RANKS_MAX, Shape};
use std::time::{Duration, Instant};

fn shape(paths: &[&[usize]]) -> Shape {
    let paths = paths.iter().map(|p| Path { nodes: p.to_vec() }).collect();
    Shape { ranks: 4, paths, chunk_bytes: 100, slots: 3 }
}

#[test]
fn rings_of_a_gpu_lie_one_after_the_other_in_its_staging_memory() {
    let s = shape(&[&[0, 1], &[0, 2, 1], &[0, 2, 3, 1], &[3, 2, 0]]);
    assert_eq!(s.fault(), None);
    assert_eq!(s.rings_of(2).collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1)]);
    assert_eq!((s.ring_offset(1, 1), s.ring_offset(3, 1), s.ring_offset(2, 2)), (0, 600, 0));
    assert_eq!((s.staging_bytes(2), s.staging_bytes(3), s.staging_bytes(0)), (900, 300, 0));
}

#[test]
fn paths_that_are_none_and_sizes_out_of_range_are_refused_by_name() {
    for bad in [&[0][..], &[0, 0], &[0, 4], &[0, 1, 2, 1], &[0, 1, 2, 3, 0]] {
        assert!(shape(&[&[0, 1], bad]).fault().is_some_and(|f| f.contains("path 1")), "{bad:?}");
    }
    let good = shape(&[&[0, 1]]);
    assert!(Shape { slots: 0, ..good.clone() }.fault().is_some());
    assert!(Shape { chunk_bytes: CHUNK_BYTES_MAX + 1, ..good.clone() }.fault().is_some());
    assert!(Shape { ranks: RANKS_MAX + 1, ..good }.fault().is_some());
}

#[test]
fn a_rank_joins_once_and_processes_with_other_paths_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let soon = || Instant::now() + Duration::from_secs(10);
    let s = shape(&[&[0, 2, 1]]);
    let first = Control::join(folder.path(), 0, &s, soon()).unwrap();
    assert!(Control::join(folder.path(), 0, &s, soon()).unwrap_err().to_string().contains("has joined already"));
    let other = shape(&[&[0, 2, 1], &[0, 3, 1]]);
    assert!(Control::join(folder.path(), 1, &other, soon()).unwrap_err().to_string().contains("differ"));
    let second = Control::join(folder.path(), 1, &s, soon()).unwrap();
    let chunk = Chunk { message: 7, offset: 100, bytes: 50 };
    first.fill(0, 1, chunk);
    assert_eq!((second.filled(0, 1), second.freed(0, 1), second.chunk(0, 1, 0)), (1, 0, chunk));
    assert_eq!((second.known_dead(), second.find_dead(1)), (None, None));
    let third = Control::join(folder.path(), 2, &s, soon()).unwrap();
    third.leave(2);
    drop(third);
    assert_eq!(second.find_dead(1), None, "it left");
    drop(first); // its lock ends as with its process
    assert_eq!((second.find_dead(1), second.known_dead()), (Some(0), Some(0)));
}
