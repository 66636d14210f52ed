//! Forms of output that several commands offer.

/// For people or for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
}

/// For people, for scripts, or to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DrawnFormat {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
    /// A drawing
    Svg,
}

/// For people, for scripts, or as a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PageFormat {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
    /// A page
    Html,
}
