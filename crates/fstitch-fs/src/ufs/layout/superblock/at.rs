//! Where the fields of a superblock lie, in bytes. All have 32 bits unless said otherwise.

// Where the parts of a group begin, in fragments: superblock, group, inodes, contents.
pub const SBLKNO: usize = 8;
pub const CBLKNO: usize = 12;
pub const IBLKNO: usize = 16;
pub const DBLKNO: usize = 20;
// UFS1: how a group's metadata moves from the beginning of its group.
pub const OLD_CGOFFSET: usize = 24;
pub const OLD_CGMASK: usize = 28;
pub const OLD_TIME: usize = 32;
pub const OLD_SIZE: usize = 36;
pub const OLD_DSIZE: usize = 40;
pub const NCG: usize = 44;
pub const BSIZE: usize = 48;
pub const FSIZE: usize = 52;
pub const FRAG: usize = 56;
pub const MINFREE: usize = 60;
pub const OLD_RPS: usize = 68;
// Masks and shifts of a block and a fragment.
pub const BMASK: usize = 72;
pub const FMASK: usize = 76;
pub const BSHIFT: usize = 80;
pub const FSHIFT: usize = 84;
pub const MAXCONTIG: usize = 88;
pub const MAXBPG: usize = 92;
pub const FRAGSHIFT: usize = 96;
pub const FSBTODB: usize = 100;
pub const SBSIZE: usize = 104;
pub const NINDIR: usize = 116;
pub const INOPB: usize = 120;
pub const OLD_NSPF: usize = 124;
pub const OPTIM: usize = 128;
pub const OLD_NPSECT: usize = 132;
pub const OLD_INTERLEAVE: usize = 136;
// Two of 32 bits.
pub const ID: usize = 144;
pub const OLD_CSADDR: usize = 152;
pub const CSSIZE: usize = 156;
pub const CGSIZE: usize = 160;
pub const OLD_NSECT: usize = 168;
pub const OLD_SPC: usize = 172;
pub const OLD_NCYL: usize = 176;
pub const OLD_CPG: usize = 180;
pub const IPG: usize = 184;
pub const FPG: usize = 188;
// Four of 32 bits: directories, free blocks, inodes, fragments.
pub const OLD_CSTOTAL: usize = 192;
// 8 bits.
pub const CLEAN: usize = 209;
// 8 bits.
pub const OLD_FLAGS: usize = 211;
// 32 bytes.
pub const VOLNAME: usize = 680;
pub const MAXBSIZE: usize = 860;
// 8 bits each: the version of NetBSD's journal, and where it lies.
pub const JOURNAL_VERSION: usize = 864;
pub const JOURNAL_LOCATION: usize = 865;
// 64 bits.
pub const PROVIDERSIZE: usize = 872;
// 64 bits.
pub const METASPACE: usize = 880;
// 64 bits: where this copy lies.
pub const SBLOCKACTUALLOC: usize = 992;
// 64 bits: where the first one lies.
pub const SBLOCKLOC: usize = 1000;
// Four of 64 bits, as `OLD_CSTOTAL`.
pub const CSTOTAL: usize = 1008;
// 64 bits.
pub const TIME: usize = 1072;
// 64 bits.
pub const SIZE: usize = 1080;
// 64 bits.
pub const DSIZE: usize = 1088;
// 64 bits.
pub const CSADDR: usize = 1096;
// Twenty of 32 bits: the inodes of snapshots.
pub const SNAPINUM: usize = 1116;
pub const AVGFILESIZE: usize = 1196;
pub const AVGFPDIR: usize = 1200;
// 64 bits: when it was mounted.
pub const MTIME: usize = 1208;
// The superblock's check hash; which structures have one.
pub const CKHASH: usize = 1304;
pub const METACKHASH: usize = 1308;
pub const FLAGS: usize = 1312;
pub const CONTIGSUMSIZE: usize = 1316;
pub const MAXSYMLINKLEN: usize = 1320;
pub const OLD_INODEFMT: usize = 1324;
// 64 bits.
pub const MAXFILESIZE: usize = 1328;
// 64 bits.
pub const QBMASK: usize = 1336;
// 64 bits.
pub const QFMASK: usize = 1344;
pub const OLD_POSTBLFORMAT: usize = 1356;
pub const OLD_NRPOS: usize = 1360;
pub const MAGIC: usize = 1372;
