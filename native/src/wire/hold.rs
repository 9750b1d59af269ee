//! What a receiver asks of messages of collectives that have not begun there: to wait at their sender, or to go on.

use super::cbor::decode_map;
use super::error_codes::{Violation, invalid};
use super::header::{Fields, NAME_BYTES_MAX, unsigned};
use super::header_writer::{Map, behind_its_length};

pub(super) const FRAME_HOLD: u64 = 1;

/// A frame of the control stream: a group's operations from a step on wait, or go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub group: String,
    pub step: u64,
    pub waits: bool,
}

impl Hold {
    /// As a whole frame.
    pub fn frame(&self) -> Vec<u8> {
        let mut map = Map::default();
        map.some(0, &self.group);
        map.int(1, self.step);
        map.int(2, u64::from(self.waits));
        [vec![FRAME_HOLD as u8], behind_its_length(&map.body())].concat()
    }

    /// Read a frame's map.
    pub fn decode(body: &[u8]) -> Result<Self, Violation> {
        let mut fields = Fields(decode_map(body)?);
        let group = fields.text(0, "group")?;
        let step = unsigned(fields.int(1, "step")?, "step")?;
        let waits = match fields.int(2, "waits")? {
            0 => false,
            1 => true,
            other => return Err(invalid(format!("waits is neither 0 nor 1 but {other}"))),
        };
        if group.len() > NAME_BYTES_MAX {
            return Err(invalid(format!("group is longer than {NAME_BYTES_MAX} bytes")));
        }
        Ok(Self {
            group: group.to_owned(),
            step,
            waits,
        })
    }
}
