//! PCIe paths between devices, derived from shared bridges.

use super::Device;
use crate::host::PathKind;
use roxmltree::Node;

/// Paths without NVLink between every two devices; true if a cascade was counted as one switch.
pub(super) fn paths(gpus: &[&Device<'_>]) -> (Vec<Vec<PathKind>>, bool) {
    let mut flattened = false;
    let matrix = gpus
        .iter()
        .map(|a| {
            gpus.iter()
                .map(|b| {
                    let (kind, flat) = path(a, b);
                    flattened |= flat;
                    kind
                })
                .collect()
        })
        .collect();
    (matrix, flattened)
}

/// The path between two devices, from their shared bridges; true if a cascade was counted as one switch.
pub(super) fn path(a: &Device<'_>, b: &Device<'_>) -> (PathKind, bool) {
    if a.bus_id == b.bus_id {
        return (PathKind::Same, false);
    }
    if a.cpu != b.cpu {
        return (PathKind::Sys, false);
    }
    let shared = a.bridges.iter().zip(&b.bridges).take_while(|(x, y)| x == y).count();
    if shared == 0 {
        return (PathKind::Phb, false);
    }
    let below: Vec<_> = a.bridges[shared..].iter().chain(&b.bridges[shared..]).collect();
    if below.is_empty() {
        return (PathKind::Pix, false);
    }
    let chip = broadcom(a.bridges[shared - 1]);
    let one_chip = chip.is_some() && below.iter().all(|n| broadcom(**n) == chip);
    (if one_chip { PathKind::Pix } else { PathKind::Pxb }, one_chip)
}

/// Broadcom's Gen4 and Gen5 switches (0x1000:0xc010, 0x1000:0xc030) appear as a cascade of bridges, although they are
/// one chip. Returns the device id of such a bridge.
fn broadcom<'a>(node: Node<'a, '_>) -> Option<&'a str> {
    let device = node.attribute("device").filter(|d| matches!(*d, "0xc010" | "0xc030"))?;
    (node.attribute("vendor") == Some("0x1000")).then_some(device)
}
