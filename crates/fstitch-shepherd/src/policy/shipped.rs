//! The policies that come with the program. Each is a file of at most 12 lines (D-GRAID: 20), which a test counts.

/// A policy with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// All of them, in the order of \[C\], then our own.
        pub const SHIPPED: &[Shipped] =
            &[$(Shipped { name: $name, text: include_str!(concat!("../../policies/", $name, ".toml")) }),*];
    };
}

shipped!(
    "propagate",
    "retry",
    "ntfs",
    "reiserfs",
    "stop",
    "reboot",
    "sanity",
    "checksum",
    "mirror-near",
    "mirror-far",
    "remap",
    "remap-mirror",
    "parity",
    "defence-in-depth",
    "d-graid",
    "laptop",
    "sd-card",
);

/// The policy of this name.
#[must_use]
pub fn shipped(name: &str) -> Option<&'static Shipped> {
    SHIPPED.iter().find(|shipped| shipped.name == name)
}
