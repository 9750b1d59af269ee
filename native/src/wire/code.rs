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
    CodecUnknown = 0x17,
    HelloInvalid = 0x18,
    CertificateMissing = 0x20,
    CertificateUntrusted = 0x21,
    CertificateExpired = 0x22,
    RoleRefused = 0x23,
    PeerUnexpected = 0x24,
    JobMismatch = 0x25,
    Cancelled = 0x30,
    DeadlinePassed = 0x31,
    Discarded = 0x32,
    BufferTooSmall = 0x33,
    TooManyConnections = 0x40,
    HandshakeTimeout = 0x41,
    Dead = 0x42,
    CountedAsGone = 0x43,
}

/// The name of an application error code, for people.
pub fn code_name(code: u64) -> String {
    const NAMES: [(u64, &str); 25] = [
        (0x00, "NO_ERROR"),
        (0x01, "INTERNAL"),
        (0x10, "PROTOCOL_VIOLATION"),
        (0x11, "HEADER_INVALID"),
        (0x12, "HEADER_TOO_LARGE"),
        (0x13, "VERSION_UNSUPPORTED"),
        (0x14, "DTYPE_UNKNOWN"),
        (0x15, "LENGTH_MISMATCH"),
        (0x16, "MESSAGE_TOO_LONG"),
        (0x17, "CODEC_UNKNOWN"),
        (0x18, "HELLO_INVALID"),
        (0x20, "CERTIFICATE_MISSING"),
        (0x21, "CERTIFICATE_UNTRUSTED"),
        (0x22, "CERTIFICATE_EXPIRED"),
        (0x23, "ROLE_REFUSED"),
        (0x24, "PEER_UNEXPECTED"),
        (0x25, "JOB_MISMATCH"),
        (0x30, "CANCELLED"),
        (0x31, "DEADLINE_PASSED"),
        (0x32, "DISCARDED"),
        (0x33, "BUFFER_TOO_SMALL"),
        (0x40, "TOO_MANY_CONNECTIONS"),
        (0x41, "HANDSHAKE_TIMEOUT"),
        (0x42, "DEAD"),
        (0x43, "COUNTED_AS_GONE"),
    ];
    match NAMES.iter().find(|(number, _)| *number == code) {
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
