//! A tree as files of the machine, so that programs can be asked about it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown, lchown, symlink};
use std::path::{Path, PathBuf};

use fstitch_core::FileKind;
use fstitch_core::num::to_u64;
use twox_hash::xxhash3_128::Hasher;

use super::tree::{CHUNK, Object, ObjectId, Tree};

impl Tree {
    /// A hash of everything that [`Tree::unpack`] would write.
    #[must_use]
    pub fn fingerprint(&self, top: ObjectId) -> u128 {
        let mut hash = Hasher::new();
        let mut numbers = BTreeMap::new();
        let mut open = vec![top];
        while let Some(id) = open.pop() {
            let next = numbers.len();
            let number = *numbers.entry(id).or_insert(next);
            hash.write(&number.to_le_bytes());
            if number == next
                && let Some(object) = self.get(id)
            {
                add_object(&mut hash, object);
                open.extend(object.names.values());
            }
        }
        hash.finish_128()
    }

    /// Writes what is below the directory `top` into the directory `to`, which must not exist: contents, modes, owners,
    /// hard and symbolic links. Times are new; special files and extended attributes are left out.
    ///
    /// # Errors
    /// When that fails; what was written stays.
    pub fn unpack(&self, top: ObjectId, to: &Path) -> io::Result<()> {
        self.unpack_at(top, to, &mut BTreeMap::new())
    }

    fn unpack_at(&self, id: ObjectId, to: &Path, files: &mut BTreeMap<ObjectId, PathBuf>) -> io::Result<()> {
        let Some(object) = self.get(id) else { return Ok(()) };
        match object.kind {
            FileKind::Directory => {
                fs::create_dir(to)?;
                for (name, child) in &object.names {
                    self.unpack_at(*child, &to.join(OsStr::from_bytes(name)), files)?;
                }
                let directory = File::open(to)?;
                own(&directory, object)
            }
            FileKind::Regular => match files.get(&id) {
                Some(first) => fs::hard_link(first, to),
                None => {
                    files.insert(id, to.to_owned());
                    unpack_file(object, to)
                }
            },
            FileKind::Symlink => {
                symlink(OsStr::from_bytes(&object.target), to)?;
                let now = fs::symlink_metadata(to)?;
                match (now.uid(), now.gid()) == (object.uid, object.gid) {
                    true => Ok(()),
                    false => lchown(to, Some(object.uid), Some(object.gid)),
                }
            }
            _ => Ok(()),
        }
    }
}

/// The number of names and of chunks comes first, so that two sequences never hash alike.
fn add_object(hash: &mut Hasher, object: &Object) {
    let numbers =
        [u32::from(object.kind.mode_bits()), u32::from(object.perm), object.uid, object.gid, object.rdev];
    numbers.iter().for_each(|number| hash.write(&number.to_le_bytes()));
    hash.write(&object.size.to_le_bytes());
    hash.write(&object.chunks.len().to_le_bytes());
    for (at, chunk) in &object.chunks {
        hash.write(&at.to_le_bytes());
        hash.write(chunk);
    }
    add_bytes(hash, &object.target);
    hash.write(&object.names.len().to_le_bytes());
    object.names.keys().for_each(|name| add_bytes(hash, name));
}

fn add_bytes(hash: &mut Hasher, bytes: &[u8]) {
    hash.write(&bytes.len().to_le_bytes());
    hash.write(bytes);
}

fn unpack_file(object: &Object, to: &Path) -> io::Result<()> {
    let file = File::create_new(to)?;
    let chunk_len = to_u64(CHUNK);
    for (at, chunk) in &object.chunks {
        let offset = at * chunk_len;
        let len = usize::try_from(object.size.saturating_sub(offset).min(chunk_len)).expect("a chunk");
        file.write_all_at(&chunk[..len], offset)?;
    }
    file.set_len(object.size)?;
    own(&file, object)
}

/// Owner and mode, in this order: a change of owner takes mode bits away.
fn own(file: &File, object: &Object) -> io::Result<()> {
    let now = file.metadata()?;
    if (now.uid(), now.gid()) != (object.uid, object.gid) {
        fchown(file, Some(object.uid), Some(object.gid))?;
    }
    file.set_permissions(Permissions::from_mode(u32::from(object.perm)))
}
