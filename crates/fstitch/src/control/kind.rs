//! What blocks hold, in the words of the control socket.

use fstitch_core::BlockKind;
use serde::{Deserialize, Serialize};

/// Declares the kinds with their words.
macro_rules! kinds {
    ($($kind:ident $word:literal),* $(,)?) => {
        /// What a block holds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Kind {
            $(#[serde(rename = $word)] $kind,)*
            /// A kind that this program does not know.
            #[default]
            #[serde(other, rename = "other")]
            Other,
        }

        impl From<BlockKind> for Kind {
            fn from(kind: BlockKind) -> Self {
                match kind {
                    $(BlockKind::$kind => Self::$kind,)*
                }
            }
        }

        impl std::fmt::Display for Kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $(Self::$kind => $word,)*
                    Self::Other => "other",
                })
            }
        }
    };
}

kinds! {
    Superblock "superblock",
    GroupDescriptor "group-descriptor",
    BlockBitmap "block-bitmap",
    InodeBitmap "inode-bitmap",
    Inode "inode",
    Directory "directory",
    Indirect "indirect",
    Data "data",
    Attribute "attribute",
    JournalSuperblock "journal-superblock",
    JournalDescriptor "journal-descriptor",
    JournalRevoke "journal-revoke",
    JournalData "journal-data",
    JournalCommit "journal-commit",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_as_they_are_shown() {
        for kind in [BlockKind::Data, BlockKind::BlockBitmap, BlockKind::JournalCommit] {
            let kind = Kind::from(kind);
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(serde_json::from_str::<Kind>(&format!("\"{kind}\"")).unwrap(), kind);
        }
        assert_eq!(serde_json::from_str::<Kind>("\"of tomorrow\"").unwrap(), Kind::Other);
        assert_eq!(format!("{:<6}|", Kind::Data), "data  |");
    }
}
