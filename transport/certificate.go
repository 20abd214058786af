package transport

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"reflect"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	tls "github.com/libp2p/go-libp2p/p2p/security/tls"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
)

// Every connection shows a certificate that carries the node's key. libp2p's are valid
// from an hour before the clock of their maker, so that a peer whose clock is further
// behind refuses them without naming the cause. These are valid under any clock: the
// membership of a peer is decided in the hello.
var (
	certFrom  = time.Unix(0, 0).UTC()
	certUntil = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// certTemplate returns the template of a connection certificate. A template serves for
// one certificate.
func certTemplate() (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{SerialNumber: serial.String()}, NotBefore: certFrom, NotAfter: certUntil}, nil
}

// quicCertificate sets the certificate of QUIC connections.
func quicCertificate() (quic.Option, error) {
	template, err := certTemplate()
	return quic.WithTLSIdentityOption(tls.WithCertTemplate(template)), err
}

// newTLS returns TLS for TCP connections and circuits. libp2p gives no access to its
// certificate.
func newTLS(key crypto.PrivKey, muxers []upgrader.StreamMuxer) (*tls.Transport, error) {
	t, err := tls.New(tls.ID, key, muxers)
	if err != nil {
		return nil, err
	}
	template, err := certTemplate()
	if err != nil {
		return nil, err
	}
	id, err := tls.NewIdentity(key, tls.WithCertTemplate(template))
	if err != nil {
		return nil, err
	}
	f := reflect.ValueOf(t).Elem().FieldByName("identity")
	if !f.IsValid() || f.Type() != reflect.TypeFor[*tls.Identity]() {
		return nil, errors.New("transport: this version of libp2p stores the certificate of TLS connections elsewhere")
	}
	*(**tls.Identity)(f.Addr().UnsafePointer()) = id
	return t, nil
}
