//! Why connections and messages end early: the protocol's error codes, and what breaks it.

/// Application error codes of CONNECTION_CLOSE, RESET_STREAM and STOP_SENDING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    NoError = 0x00,
    Internal = 0x01,
    ProtocolViolation = 0x10,
    HeaderInvalid = 0x11,
    HeaderTooLarge = 0x12,
    VersionUnsupported = 0x13,
    DtypeUnknown = 0x14,
    LengthMismatch = 0x15,
    MessageTooLong = 0x16,
    HelloInvalid = 0x18,
    CertificateMissing = 0x20,
    CertificateUntrusted = 0x21,
    CertificateExpired = 0x22,
    RoleRefused = 0x23,
    PeerUnexpected = 0x24,
    JobMismatch = 0x25,
    CertificateRevoked = 0x26,
    Cancelled = 0x30,
    Discarded = 0x32,
    BufferTooSmall = 0x33,
    TooManyConnections = 0x40,
    HandshakeTimeout = 0x41,
    Dead = 0x42,
    CountedAsGone = 0x43,
}

const NAMES: [(Code, &str); 24] = [
    (Code::NoError, "NO_ERROR"),
    (Code::Internal, "INTERNAL"),
    (Code::ProtocolViolation, "PROTOCOL_VIOLATION"),
    (Code::HeaderInvalid, "HEADER_INVALID"),
    (Code::HeaderTooLarge, "HEADER_TOO_LARGE"),
    (Code::VersionUnsupported, "VERSION_UNSUPPORTED"),
    (Code::DtypeUnknown, "DTYPE_UNKNOWN"),
    (Code::LengthMismatch, "LENGTH_MISMATCH"),
    (Code::MessageTooLong, "MESSAGE_TOO_LONG"),
    (Code::HelloInvalid, "HELLO_INVALID"),
    (Code::CertificateMissing, "CERTIFICATE_MISSING"),
    (Code::CertificateUntrusted, "CERTIFICATE_UNTRUSTED"),
    (Code::CertificateExpired, "CERTIFICATE_EXPIRED"),
    (Code::RoleRefused, "ROLE_REFUSED"),
    (Code::PeerUnexpected, "PEER_UNEXPECTED"),
    (Code::JobMismatch, "JOB_MISMATCH"),
    (Code::CertificateRevoked, "CERTIFICATE_REVOKED"),
    (Code::Cancelled, "CANCELLED"),
    (Code::Discarded, "DISCARDED"),
    (Code::BufferTooSmall, "BUFFER_TOO_SMALL"),
    (Code::TooManyConnections, "TOO_MANY_CONNECTIONS"),
    (Code::HandshakeTimeout, "HANDSHAKE_TIMEOUT"),
    (Code::Dead, "DEAD"),
    (Code::CountedAsGone, "COUNTED_AS_GONE"),
];

/// The name of an application error code, for people.
pub fn code_name(code: u64) -> String {
    match NAMES.iter().find(|(number, _)| *number as u64 == code) {
        Some((_, name)) => format!("{name} (0x{code:02x})"),
        None => format!("0x{code:02x}"),
    }
}

/// Bytes from a peer that break the protocol: what to close the connection with, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub code: Code,
    pub reason: String,
}

impl Violation {
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
        }
    }
}

pub(super) fn invalid(reason: impl Into<String>) -> Violation {
    Violation::new(Code::HeaderInvalid, reason)
}
