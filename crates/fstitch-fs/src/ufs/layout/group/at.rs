//! Where the fields of a cylinder group lie, in bytes. All have 32 bits unless said otherwise.

pub const MAGIC: usize = 4;
// UFS1.
pub const OLD_TIME: usize = 8;
pub const CGX: usize = 12;
// 16 bits; UFS1.
pub const OLD_NCYL: usize = 16;
// 16 bits; UFS1.
pub const OLD_NIBLK: usize = 18;
pub const NDBLK: usize = 20;
// Four: directories, free blocks, inodes, fragments.
pub const CS: usize = 24;
// Eight: how many runs of free fragments of each length there are in blocks that are not free as a whole.
pub const FRSUM: usize = 52;
// UFS1: where the old tables of free blocks by cylinder and by position are.
pub const OLD_BTOTOFF: usize = 84;
pub const OLD_BOFF: usize = 88;
pub const IUSEDOFF: usize = 92;
pub const FREEOFF: usize = 96;
pub const NEXTFREEOFF: usize = 100;
pub const CLUSTERSUMOFF: usize = 104;
pub const CLUSTEROFF: usize = 108;
pub const NCLUSTERBLKS: usize = 112;
// UFS2.
pub const NIBLK: usize = 116;
// UFS2.
pub const INITEDIBLK: usize = 120;
// The group's check hash.
pub const CKHASH: usize = 128;
// 64 bits; UFS2.
pub const TIME: usize = 136;
/// Bytes before what is of variable length.
pub const HEADER: usize = 168;

/// Bytes of a number.
pub const WORD: usize = 4;
/// UFS1: bytes of the old tables of a cylinder, of which there is one: of its free blocks, and of those at its one position.
pub const OLD_CYLINDER_TOTALS: usize = 4;
pub const OLD_CYLINDER_BLOCKS: usize = 2;
