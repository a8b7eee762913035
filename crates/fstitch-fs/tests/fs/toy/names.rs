//! The toy's directories.

use fstitch_core::{BlockNo, DirEntry, FileKind, InodeNo, Result};
use fstitch_fs::uhfs::{ClearedName, FreedName, NameSlot};
use fstitch_patch::{PatchId, PatchIds};

use super::{Name, ToyFs, ToyInode};

/// All entries of a directory are in one block, so that names can be exchanged.
const NAME_BLOCK: BlockNo = BlockNo(1);

impl ToyFs {
    pub(super) fn find(&self, dir: &ToyInode, name: &[u8]) -> Option<NameSlot> {
        let tables = self.0.tables();
        let raw = tables.raw(dir);
        let slot = |ino, kind, offset| NameSlot { ino, kind: Some(kind), block: NAME_BLOCK, offset };
        match name {
            b"." => Some(slot(dir.0, FileKind::Directory, 0)),
            b".." => Some(slot(raw.parent, FileKind::Directory, 1)),
            _ => {
                let found = raw.names.get(name)?;
                Some(slot(found.ino, found.kind, usize::try_from(found.cookie).unwrap()))
            }
        }
    }

    fn named(&self, dir: &ToyInode, slot: &NameSlot) -> Vec<u8> {
        let tables = self.0.tables();
        let cookie = u64::try_from(slot.offset).unwrap();
        let mut names = tables.raw(dir).names.iter();
        names.find(|(_, name)| name.cookie == cookie).map(|(name, _)| name.clone()).unwrap()
    }

    pub(super) fn add(
        &self,
        dir: &ToyInode,
        (name, ino, kind): (&[u8], InodeNo, FileKind),
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        let mut tables = self.0.tables();
        tables.check_failure("add_name")?;
        let cookie = tables.next_cookie;
        tables.next_cookie += 1;
        let old = tables.raw_mut(dir).names.insert(name.to_vec(), Name { ino, kind, cookie });
        assert!(old.is_none(), "only new names are added");
        let label = format!("name {}", String::from_utf8_lossy(name));
        Ok(PatchIds::from_slice(&[self.0.event(&mut tables, label, befores)]))
    }

    pub(super) fn replace(
        &self,
        dir: &ToyInode,
        slot: &NameSlot,
        (ino, kind): (InodeNo, FileKind),
        befores: &[PatchId],
    ) -> Result<ClearedName> {
        let name = self.named(dir, slot);
        let mut tables = self.0.tables();
        let entry = tables.raw_mut(dir).names.get_mut(&name).unwrap();
        (entry.ino, entry.kind) = (ino, kind);
        let label = format!("replace {}", String::from_utf8_lossy(&name));
        let patch = self.0.event(&mut tables, label, befores);
        Ok(ClearedName { patch, freed: FreedName::After(patch) })
    }

    pub(super) fn clear(&self, dir: &ToyInode, slot: &NameSlot, befores: &[PatchId]) -> Result<ClearedName> {
        let name = self.named(dir, slot);
        let mut tables = self.0.tables();
        tables.raw_mut(dir).names.remove(&name);
        let label = format!("clear {}", String::from_utf8_lossy(&name));
        let patch = self.0.event(&mut tables, label, befores);
        Ok(ClearedName { patch, freed: FreedName::After(patch) })
    }

    pub(super) fn exchange(
        &self,
        dir: &ToyInode,
        first: &NameSlot,
        second: &NameSlot,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let names = [self.named(dir, first), self.named(dir, second)];
        let mut tables = self.0.tables();
        let mut put = |name: &Vec<u8>, slot: &NameSlot| {
            let entry = tables.raw_mut(dir).names.get_mut(name).unwrap();
            (entry.ino, entry.kind) = (slot.ino, slot.kind.unwrap());
        };
        put(&names[0], second);
        put(&names[1], first);
        Ok(self.0.event(&mut tables, "exchange".into(), befores))
    }

    pub(super) fn list(&self, dir: &ToyInode, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) {
        let entries = {
            let tables = self.0.tables();
            let raw = tables.raw(dir);
            let dots = [(1, dir.0, b".".to_vec()), (2, raw.parent, b"..".to_vec())];
            let mut entries: Vec<_> = dots
                .into_iter()
                .map(|(cookie, ino, name)| (cookie, ino, FileKind::Directory, name))
                .collect();
            entries.extend(raw.names.iter().map(|(name, e)| (e.cookie, e.ino, e.kind, name.clone())));
            entries.sort();
            entries
        };
        for (next, ino, kind, name) in entries.iter().filter(|entry| entry.0 > cookie) {
            if !sink(DirEntry { ino: *ino, kind: Some(*kind), name, next: *next }) {
                return;
            }
        }
    }
}
