//! Who owns files as users see them, and as the medium stores them.

/// How owners on the medium and owners that users see correspond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OwnerMap {
    /// The user that all files are shown to belong to; `None` shows them as stored.
    pub shown_uid: Option<u32>,
    /// The group that all files are shown to belong to; `None` shows them as stored.
    pub shown_gid: Option<u32>,
    /// With `shown_uid`: the user that new files are stored as belonging to.
    pub stored_uid: u32,
    /// With `shown_gid`: the group that new files are stored as belonging to.
    pub stored_gid: u32,
}

impl OwnerMap {
    /// Shows every file as `shown` (user and group) and stores new ones as root's.
    #[must_use]
    pub const fn all_as(shown: (u32, u32)) -> Self {
        Self { shown_uid: Some(shown.0), shown_gid: Some(shown.1), stored_uid: 0, stored_gid: 0 }
    }

    /// What users see of a stored owner.
    pub(crate) fn show(&self, uid: u32, gid: u32) -> (u32, u32) {
        (self.shown_uid.unwrap_or(uid), self.shown_gid.unwrap_or(gid))
    }

    /// What a user's ids are on the medium.
    pub(crate) fn store(&self, uid: u32, gid: u32) -> (u32, u32) {
        (
            if self.shown_uid.is_some() { self.stored_uid } else { uid },
            if self.shown_gid.is_some() { self.stored_gid } else { gid },
        )
    }

    /// The changes of owner to make for a `chown`, or `None` where it asks for an owner that the map cannot
    /// express. Setting the owner that is shown anyway changes nothing.
    pub(crate) fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Option<(Option<u32>, Option<u32>)> {
        let part = |asked: Option<u32>, shown: Option<u32>| match (asked, shown) {
            (Some(asked), Some(shown)) if asked != shown => None,
            (Some(_), Some(_)) => Some(None),
            (asked, _) => Some(asked),
        };
        Some((part(uid, self.shown_uid)?, part(gid, self.shown_gid)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_map_everything_passes() {
        let map = OwnerMap::default();
        assert_eq!(map.show(5, 6), (5, 6));
        assert_eq!(map.store(5, 6), (5, 6));
        assert_eq!(map.chown(Some(1), None), Some((Some(1), None)));
    }

    #[test]
    fn a_mapped_owner_is_shown_and_cannot_change() {
        let map = OwnerMap::all_as((1000, 100));
        assert_eq!(map.show(0, 0), (1000, 100));
        assert_eq!(map.store(1000, 100), (0, 0));
        assert_eq!(map.chown(Some(1000), Some(100)), Some((None, None)));
        assert_eq!(map.chown(Some(0), None), None);
    }
}
