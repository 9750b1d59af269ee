//! The connections of an endpoint that the driver has to look at.

use std::sync::Mutex;
use std::task::Waker;

use quinn_proto::ConnectionHandle;

use crate::runtime::locks::locked;

#[derive(Default)]
pub struct DirtyList {
    list: Mutex<(Vec<ConnectionHandle>, Option<Waker>)>,
}

impl DirtyList {
    pub fn add(&self, handle: ConnectionHandle) {
        let mut list = locked(&self.list);
        list.0.push(handle);
        if let Some(driver) = &list.1 {
            driver.wake_by_ref();
        }
    }

    /// Wake the driver though no connection is dirty.
    pub fn wake(&self) {
        let list = locked(&self.list);
        if let Some(driver) = &list.1 {
            driver.wake_by_ref();
        }
    }

    /// Move what there is to the end of `into`; `driver` is woken when there is more.
    pub fn take(&self, driver: &Waker, into: &mut Vec<ConnectionHandle>) {
        let mut list = locked(&self.list);
        into.append(&mut list.0);
        if !list.1.as_ref().is_some_and(|known| known.will_wake(driver)) {
            list.1 = Some(driver.clone());
        }
    }
}
