"""The values of the kernel side. No I/O and no policy.

An `InterfaceShape` says what one interface shall look like (`shapes`). `plan.desired_tree` turns it into a `Tree`, the
kernel's objects with their handles; `plan.diff` compares two trees and gives `Operation`s (`tree`). A kernel applies
them and reads back; what it says are `observations`. `names` has our handles, minors and marks.

Rates are bits per second here. `netlink.fast_path` alone turns them into the kernel's bytes per second.
"""

from shaping.model.names import BULK_NAME as BULK_NAME
from shaping.model.names import CLASS_NAMES as CLASS_NAMES
from shaping.model.names import CLASS_OF_LEAF as CLASS_OF_LEAF
from shaping.model.names import CLASS_OF_MARK as CLASS_OF_MARK
from shaping.model.names import DEFAULT_LEAVES as DEFAULT_LEAVES
from shaping.model.names import DESTINATION_MINOR as DESTINATION_MINOR
from shaping.model.names import DSCP as DSCP
from shaping.model.names import HELD_NAME as HELD_NAME
from shaping.model.names import INNER_MINOR as INNER_MINOR
from shaping.model.names import JOB_MINOR as JOB_MINOR
from shaping.model.names import LEAF_MINOR as LEAF_MINOR
from shaping.model.names import MAJOR as MAJOR
from shaping.model.names import MARK_MINOR as MARK_MINOR
from shaping.model.names import REDIRECTION_PROTOCOL as REDIRECTION_PROTOCOL
from shaping.model.names import ROOT_MINOR as ROOT_MINOR
from shaping.model.names import UNHELD_NAME as UNHELD_NAME
from shaping.model.names import classid as classid
from shaping.model.names import device_of as device_of
from shaping.model.names import is_ours as is_ours
from shaping.model.names import number_behind as number_behind
from shaping.model.names import show_classid as show_classid
from shaping.model.observations import Attachment as Attachment
from shaping.model.observations import Capabilities as Capabilities
from shaping.model.observations import ClassCounters as ClassCounters
from shaping.model.observations import DeviceSegments as DeviceSegments
from shaping.model.observations import IngressAttachment as IngressAttachment
from shaping.model.observations import InterfaceCounters as InterfaceCounters
from shaping.model.observations import PriorQdisc as PriorQdisc
from shaping.model.observations import Redirection as Redirection
from shaping.model.observations import SegmentState as SegmentState
from shaping.model.shapes import Arrival as Arrival
from shaping.model.shapes import ClassShape as ClassShape
from shaping.model.shapes import DestinationShape as DestinationShape
from shaping.model.shapes import Direction as Direction
from shaping.model.shapes import IngressShape as IngressShape
from shaping.model.shapes import InterfaceShape as InterfaceShape
from shaping.model.shapes import JobShape as JobShape
from shaping.model.shapes import Rule as Rule
from shaping.model.tree import AddClass as AddClass
from shaping.model.tree import AddFilter as AddFilter
from shaping.model.tree import AddLeaf as AddLeaf
from shaping.model.tree import AddRoot as AddRoot
from shaping.model.tree import ChangeClass as ChangeClass
from shaping.model.tree import ChangeLeaf as ChangeLeaf
from shaping.model.tree import ClassSpec as ClassSpec
from shaping.model.tree import DeleteFilter as DeleteFilter
from shaping.model.tree import FilterSpec as FilterSpec
from shaping.model.tree import LeafSpec as LeafSpec
from shaping.model.tree import Operation as Operation
from shaping.model.tree import QdiscSpec as QdiscSpec
from shaping.model.tree import Tree as Tree
from shaping.model.tree import describe as describe
