//! The output of `nvidia-smi -q -x`: UUID and minor number of every GPU of a host, in nvidia-smi's order.

use topology::{GPUS_PER_HOST_MAX, ReadError};

/// Maximum size of a file, bytes: a GPU takes about 20 kB.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// A GPU of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its model.
    pub product: String,
    /// Its UUID; empty if the file does not state it.
    pub uuid: String,
    /// Minor number of its device file; none if the file does not state it.
    pub minor: Option<u8>,
}

/// Reads the file. O(bytes).
pub fn read(text: &str, file: &str) -> Result<Vec<Device>, ReadError> {
    let remedy = "run `nvidia-smi -q -x` on the host again";
    if text.len() > FILE_BYTES_MAX {
        return Err(topology::read::too_large(file, FILE_BYTES_MAX));
    }
    // The document names a DTD that is not there; nodes are limited by the size of the text.
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    let document = roxmltree::Document::parse_with_options(text, options)
        .map_err(|e| ReadError::in_file(file, format!("not XML: {e}"), remedy))?;
    let mut out = Vec::new();
    for gpu in document.root_element().children().filter(|n| n.has_tag_name("gpu")) {
        let field = |name: &str| {
            let text = gpu.children().find(|n| n.has_tag_name(name)).and_then(|n| n.text()).unwrap_or_default().trim();
            text.chars().filter(|c| !c.is_control()).take(96).collect::<String>()
        };
        if out.len() == GPUS_PER_HOST_MAX {
            return Err(ReadError::in_file(file, format!("more than {GPUS_PER_HOST_MAX} GPUs"), remedy));
        }
        let uuid = Some(field("uuid")).filter(|u| u.starts_with("GPU-")).unwrap_or_default();
        out.push(Device { product: field("product_name"), uuid, minor: field("minor_number").parse().ok() });
    }
    if out.is_empty() {
        return Err(ReadError::in_file(file, "no <gpu> below the root element", remedy));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_and_minor_number_of_every_gpu_are_read() {
        let text = "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\
                    <driver_version>550</driver_version><gpu id=\"0\"><product_name>NVIDIA H100</product_name>\
                    <uuid>GPU-1</uuid><minor_number>3</minor_number></gpu><gpu id=\"1\"><minor_number>N/A</minor_number></gpu></nvidia_smi_log>";
        let found = read(text, "n1.xml").unwrap();
        assert_eq!((found[0].uuid.as_str(), found[0].minor, found[1].minor), ("GPU-1", Some(3), None));
        for bad in ["", "<a>", "<a/>", "not XML"] {
            assert!(read(bad, "n1.xml").unwrap_err().to_string().contains("n1.xml"), "{bad}");
        }
    }
}
