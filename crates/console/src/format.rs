//! Output formats that several commands offer.

/// Text or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
}

/// Text, JSON or a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DrawnFormat {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
    /// A drawing
    Svg,
}

/// Text, JSON or an HTML page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PageFormat {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
    /// A page
    Html,
}
