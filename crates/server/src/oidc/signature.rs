//! Signatures of tokens, checked by *ring*: only asymmetric algorithms, RSA with at least 2,048 bits.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature as by;

/// The algorithms that are accepted. Secrets that both sides know (`HS256`) and `none` are not among them.
pub const ACCEPTED: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Makes *ring* check the signatures of this process.
pub fn install() {
    static RING: CryptoProvider = CryptoProvider {
        signer_factory: no_signer,
        verifier_factory: verifier,
        key_utils: KeyUtils::new_unimplemented(),
    };
    // A second server of the same process finds it installed.
    let _ = RING.install_default();
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

/// A key, and the algorithm that it is used with.
struct Checked {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if !ACCEPTED.contains(algorithm) {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(Checked { algorithm: *algorithm, key: key.clone() }))
}

impl JwtVerifier for Checked {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Checked {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        let rsa = match self.algorithm {
            Algorithm::RS256 => Some(&by::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Some(&by::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Some(&by::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => Some(&by::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => Some(&by::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => Some(&by::RSA_PSS_2048_8192_SHA512),
            _ => None,
        };
        let other: Option<&dyn by::VerificationAlgorithm> = match self.algorithm {
            Algorithm::ES256 => Some(&by::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Some(&by::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Some(&by::ED25519),
            _ => None,
        };
        let checked = match (self.key.kind(), rsa, other) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, Some(rsa), _) => {
                by::RsaPublicKeyComponents { n, e }.verify(rsa, message, signature)
            }
            (DecodingKeyKind::SecretOrDer(point), _, Some(other)) => {
                by::UnparsedPublicKey::new(other, point).verify(message, signature)
            }
            _ => return Err(signature::Error::new()),
        };
        checked.map_err(|_| signature::Error::new())
    }
}
