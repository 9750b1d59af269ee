//! TLS 1.3 for both sides: our certificate is presented, the peer's is asked for, and its key is proved.
//!
//! Whether the certificate itself is good is judged when the handshake is complete, by the one place that knows
//! (`transport/identity`), on both sides alike: only then can the other side be told why not.
//! Sessions are not resumed (RFC 8446 2.2): there is no early data, so that it would save no round trip.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme, version};

/// The configurations of an endpoint as client and as server.
pub struct Identity {
    pub client: Arc<QuicClientConfig>,
    pub server: Arc<QuicServerConfig>,
}

impl Identity {
    /// Args: certificates in DER, our own first, the key in PKCS 8, and the protocol that is spoken (ALPN).
    pub fn new(certificates: Vec<Vec<u8>>, key: Vec<u8>, protocol: &str) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain: Vec<CertificateDer<'static>> = certificates.into_iter().map(CertificateDer::from).collect();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
        let proof = Arc::new(KeyProof::new(&provider));
        let wrong = |error: Error| error.to_string();
        let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(wrong)?
            .dangerous()
            .with_custom_certificate_verifier(proof.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(wrong)?;
        client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let mut server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(wrong)?
            .with_client_cert_verifier(proof)
            .with_single_cert(chain, key)
            .map_err(wrong)?;
        server.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        client.resumption = Resumption::disabled();
        server.send_tls13_tickets = 0;
        let unusable = |error: quinn_proto::crypto::rustls::NoInitialCipherSuite| error.to_string();
        Ok(Self {
            client: Arc::new(QuicClientConfig::try_from(client).map_err(unusable)?),
            server: Arc::new(QuicServerConfig::try_from(server).map_err(unusable)?),
        })
    }
}

/// Checks that the peer holds the key of the certificate that it shows, and nothing else.
#[derive(Debug)]
struct KeyProof {
    algorithms: WebPkiSupportedAlgorithms,
}

impl KeyProof {
    fn new(provider: &CryptoProvider) -> Self {
        Self {
            algorithms: provider.signature_verification_algorithms,
        }
    }

    fn check(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }
}

fn no_tls12() -> Error {
    Error::General("QUIC has no TLS 1.2".to_owned())
}

impl ServerCertVerifier for KeyProof {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for KeyProof {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// A client without a certificate is let through the handshake, so that it can be told that one is missing.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// QUIC's side of the settings.
pub struct Limits {
    pub stream_window_bytes: u32,
    pub first_window_bytes: u32,
    pub streams_max: u32,
    pub datagram_bytes: u16,
    pub idle: Duration,
}

/// Bytes that every QUIC path takes (RFC 9000 14).
const DATAGRAM_BYTES_MIN: u16 = 1200;
/// What the stack holds unacknowledged: the scheduler bounds it to less, and control messages may always pass.
const SEND_WINDOW_BYTES: u64 = 1 << 40;

/// Of a datagram beside its payload: type, connection identifier, packet number and the seal. The number takes two bytes
/// with 128 packets or more under way; with fewer it takes one, and 15 bytes are left behind the whole blocks.
const AROUND_PAYLOAD_BYTES: u16 = 1 + 8 + 2 + 16;
/// Of AES. What is left of a payload behind whole ones is sealed in a way of its own.
const BLOCK_BYTES: u16 = 16;

/// The size of a datagram, not above this, whose payload has no rest behind its whole blocks where much is under way.
fn of_whole_blocks(datagram_bytes: u16) -> u16 {
    datagram_bytes - datagram_bytes.saturating_sub(AROUND_PAYLOAD_BYTES) % BLOCK_BYTES
}

impl Limits {
    pub fn transport(
        &self,
        congestion: Arc<dyn quinn_proto::congestion::ControllerFactory + Send + Sync>,
    ) -> quinn_proto::TransportConfig {
        let mut config = quinn_proto::TransportConfig::default();
        let mut discovery = quinn_proto::MtuDiscoveryConfig::default();
        let largest = DATAGRAM_BYTES_MIN.max(of_whole_blocks(self.datagram_bytes));
        discovery.upper_bound(largest);
        let mut acknowledge = quinn_proto::AckFrequencyConfig::default();
        // A send ends with its last acknowledgement, which a peer may else keep back for 25 ms. Packets that come
        // together are acknowledged together whatever is asked for here.
        acknowledge.ack_eliciting_threshold(0u32.into());
        config
            .ack_frequency_config(Some(acknowledge))
            .max_concurrent_bidi_streams(0u32.into())
            .max_concurrent_uni_streams(self.streams_max.into())
            .stream_receive_window(self.stream_window_bytes.into())
            .receive_window(self.first_window_bytes.into())
            .send_window(SEND_WINDOW_BYTES)
            // Each packet takes the most urgent stream; otherwise one that has begun goes on before all others.
            .send_fairness(true)
            .datagram_receive_buffer_size(None)
            .initial_mtu(DATAGRAM_BYTES_MIN)
            .min_mtu(DATAGRAM_BYTES_MIN)
            .mtu_discovery_config((self.datagram_bytes > DATAGRAM_BYTES_MIN).then_some(discovery))
            .max_idle_timeout(quinn_proto::IdleTimeout::try_from(self.idle).ok())
            .congestion_controller_factory(congestion);
        config
    }
}

#[cfg(test)]
mod tests {
    use quinn_proto::{ConnectionIdGenerator, HashedConnectionIdGenerator};
    use rustls::Side;
    use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    use rustls::quic::Version;

    use super::*;

    /// Type, identifier, and a packet number of two bytes, of a datagram to one of ours.
    fn header() -> Vec<u8> {
        let identifier = HashedConnectionIdGenerator::new().generate_cid();
        [&[0x41][..], &identifier, &300_u16.to_be_bytes()].concat()
    }

    /// The size of a datagram with so many bytes of frames.
    fn sealed(payload_bytes: usize) -> usize {
        let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap();
        let keys = suite.keys(b"12345678", Side::Client, Version::V1);
        let (header, mut payload) = (header(), vec![7; payload_bytes]);
        let tag = keys.local.packet.encrypt_in_place(300, &header, &mut payload).unwrap();
        header.len() + payload.len() + tag.as_ref().len()
    }

    #[test]
    fn a_full_packet_has_whole_cipher_blocks_and_is_not_larger_than_allowed() {
        for blocks in [80, 89, 500] {
            let size = sealed(blocks * usize::from(BLOCK_BYTES)) as u16;
            for allowed in size..size + BLOCK_BYTES {
                assert_eq!(of_whole_blocks(allowed), size, "of {allowed}");
            }
        }
    }
}
