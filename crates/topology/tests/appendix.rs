//! The catalog against the matrices that the papers print (BandPilot appendix E, tables 4 to 8; LiteGD appendix A).
//! The matrices repeat rows because each one is the printed table, cell by cell, for comparison with the page.

use topology::catalog;

fn compare(name: &str, printed: &str) {
    let t = catalog::host_type(name).unwrap();
    let rows: Vec<Vec<&str>> = printed.trim().lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), t.gpu_count(), "{name}");
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row[0], format!("GPU{i}"));
        assert_eq!(row.len(), t.gpu_count() + 1);
        for (j, cell) in row[1..].iter().enumerate() {
            assert_eq!(t.gpu_paths[i][j].to_string(), *cell, "{name}: GPU{i} to GPU{j}");
        }
    }
}

#[test]
fn rtx4090_is_table_4() {
    compare(
        "rtx4090",
        "GPU0 X PXB PXB PXB SYS SYS SYS SYS
         GPU1 PXB X PXB PXB SYS SYS SYS SYS
         GPU2 PXB PXB X PIX SYS SYS SYS SYS
         GPU3 PXB PXB PIX X SYS SYS SYS SYS
         GPU4 SYS SYS SYS SYS X PXB PXB PXB
         GPU5 SYS SYS SYS SYS PXB X PXB PXB
         GPU6 SYS SYS SYS SYS PXB PXB X PIX
         GPU7 SYS SYS SYS SYS PXB PXB PIX X",
    );
}

#[test]
fn v100_is_table_5() {
    compare(
        "dgx1-v100",
        "GPU0 X NV1 NV2 NV1 SYS SYS SYS NV2
         GPU1 NV1 X NV1 NV2 SYS SYS NV2 SYS
         GPU2 NV2 NV1 X NV2 SYS NV1 SYS SYS
         GPU3 NV1 NV2 NV2 X NV1 SYS SYS SYS
         GPU4 SYS SYS SYS NV1 X NV2 NV2 NV1
         GPU5 SYS SYS NV1 SYS NV2 X NV1 NV2
         GPU6 SYS NV2 SYS SYS NV2 NV1 X NV1
         GPU7 NV2 SYS SYS SYS NV1 NV2 NV1 X",
    );
}

#[test]
fn a6000_is_table_6() {
    compare(
        "a6000",
        "GPU0 X NV4 PXB PXB SYS SYS SYS SYS
         GPU1 NV4 X PXB PXB SYS SYS SYS SYS
         GPU2 PXB PXB X NV4 SYS SYS SYS SYS
         GPU3 PXB PXB NV4 X SYS SYS SYS SYS
         GPU4 SYS SYS SYS SYS X NV4 PXB PXB
         GPU5 SYS SYS SYS SYS NV4 X PXB PXB
         GPU6 SYS SYS SYS SYS PXB PXB X NV4
         GPU7 SYS SYS SYS SYS PXB PXB NV4 X",
    );
}

#[test]
fn a800_is_table_7() {
    compare(
        "a800",
        "GPU0 X NV8 NV8 NV8 NV8 NV8 NV8 NV8
         GPU1 NV8 X NV8 NV8 NV8 NV8 NV8 NV8
         GPU2 NV8 NV8 X NV8 NV8 NV8 NV8 NV8
         GPU3 NV8 NV8 NV8 X NV8 NV8 NV8 NV8
         GPU4 NV8 NV8 NV8 NV8 X NV8 NV8 NV8
         GPU5 NV8 NV8 NV8 NV8 NV8 X NV8 NV8
         GPU6 NV8 NV8 NV8 NV8 NV8 NV8 X NV8
         GPU7 NV8 NV8 NV8 NV8 NV8 NV8 NV8 X",
    );
}

#[test]
fn h100_is_table_8_under_the_name_that_keeps_its_label() {
    compare(
        "hgx-h100-nv16",
        "GPU0 X NV16 NV16 NV16 NV16 NV16 NV16 NV16
         GPU1 NV16 X NV16 NV16 NV16 NV16 NV16 NV16
         GPU2 NV16 NV16 X NV16 NV16 NV16 NV16 NV16
         GPU3 NV16 NV16 NV16 X NV16 NV16 NV16 NV16
         GPU4 NV16 NV16 NV16 NV16 X NV16 NV16 NV16
         GPU5 NV16 NV16 NV16 NV16 NV16 X NV16 NV16
         GPU6 NV16 NV16 NV16 NV16 NV16 NV16 X NV16
         GPU7 NV16 NV16 NV16 NV16 NV16 NV16 NV16 X",
    );
}
