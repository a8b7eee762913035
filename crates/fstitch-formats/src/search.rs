//! Maps of volumes that do not say any more where they are: a search over the disk, and what it takes to open by what is found.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockNo, Result};
use fstitch_shepherd::Shepherd;
use fstitch_shepherd::engine::{Asked, Found, Reach, Rescue, heads};

use crate::{FORMATS, KeepsMaps};

/// Bytes of the blocks in which a disk is searched.
pub const SEARCHED_IN: u32 = 1024;

/// Maps that were found, and shown to be the volume's.
#[derive(Clone, Debug)]
pub struct Rescued {
    /// Where they are.
    pub found: Found,
    /// Bytes of a block of the volume.
    pub block_size: u32,
    /// The block of the head by which they were found.
    pub head: BlockNo,
    /// What the volume must be given back.
    pub rescue: Rescue,
}

/// What a search has found.
#[derive(Clone, Debug, Default)]
pub struct Searched {
    /// Maps that may be used.
    pub rescued: Option<Rescued>,
    /// Why others may not, with the block of their head.
    pub refused: Vec<(BlockNo, String)>,
}

struct By<'k>(&'k dyn KeepsMaps);

impl Asked for By<'_> {
    fn uuid(&self, device: &dyn BlockDevice) -> Result<[u8; 16]> {
        self.0.uuid(device)
    }

    fn follows(&self, device: &dyn BlockDevice, area: &[BlockNo]) -> Result<bool> {
        self.0.follows(device, area)
    }

    fn uuid_of_backup(&self, device: &dyn BlockDevice) -> Option<[u8; 16]> {
        self.0.uuid_of_backup(device)
    }
}

/// Looks for maps on a disk that `open` opens in blocks of a size, one after the other; at its ends, and then, if that is wanted, everywhere.
/// Nothing is written. `progress` is told what is done, and how many of how many bytes or blocks it has got to.
///
/// # Errors
/// Those of `open`.
pub fn search(
    open: &mut dyn FnMut(u32) -> Result<Arc<dyn BlockDevice>>,
    everywhere: bool,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Searched> {
    let mut searched = Searched::default();
    let reaches: &[Reach] = if everywhere { &[Reach::Ends, Reach::Between] } else { &[Reach::Ends] };
    for reach in reaches {
        let sightings =
            heads(&*open(SEARCHED_IN)?, *reach, &mut |done, all| progress("looking for maps", done, all));
        let mut known: Vec<Found> = Vec::new();
        for sighting in sightings {
            let device = open(sighting.block_size())?;
            let rescued = sighting.follow(&device).and_then(|found| {
                if known.contains(&found) {
                    return Ok(None);
                }
                known.push(found.clone());
                by_any_format(&device, found, progress).map(Some)
            });
            let (head, block_size) = (sighting.block(), sighting.block_size());
            match rescued {
                Ok(Some((found, rescue))) => {
                    searched.rescued = Some(Rescued { found, block_size, head, rescue });
                    return Ok(searched);
                }
                Ok(None) => {}
                Err(error) => searched.refused.push((head, error.to_string())),
            }
        }
    }
    Ok(searched)
}

fn by_any_format(
    device: &Arc<dyn BlockDevice>,
    found: Found,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<(Found, Rescue)> {
    let mut refused = None;
    for keeps in FORMATS.iter().filter_map(|format| format.keeps_maps()) {
        let mut told = |done, all| progress("comparing the volume with what the maps have of it", done, all);
        match Shepherd::rescue(Arc::clone(device), &found, &By(keeps), &mut told) {
            Ok(rescue) => return Ok((found, rescue)),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| fstitch_core::Error::Unsupported("maps of a policy".into())))
}
