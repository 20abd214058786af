package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"

	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	msmux "github.com/multiformats/go-multistream"
	quicgo "github.com/quic-go/quic-go"
)

// I14: the certificates of connections are valid under any clock, over TCP and QUIC.
func TestConnectionCertificatesIgnoreClocks(t *testing.T) {
	h := bareHost(t, nil)
	defer h.Close()
	for _, addr := range h.Addrs() {
		cert := shownCertificate(t, addr)
		for _, clock := range []time.Time{time.Unix(0, 0), time.Date(2006, 1, 2, 0, 0, 0, 0, time.UTC), time.Now().AddDate(20, 0, 0), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)} {
			roots := x509.NewCertPool()
			roots.AddCert(cert)
			cert.UnhandledCriticalExtensions = nil
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: clock}); err != nil {
				t.Errorf("%v: with a clock at %v: %v", addr, clock, err)
			}
		}
	}
}

// shownCertificate returns the certificate that a host shows at addr.
func shownCertificate(t *testing.T, addr ma.Multiaddr) *x509.Certificate {
	t.Helper()
	key := bareBuilder(t, nil).key
	id, err := libp2ptls.NewIdentity(key)
	if err != nil {
		t.Fatal(err)
	}
	cfg, _ := id.ConfigForPeer("")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if isTCP(addr) {
		_, at, err := manet.DialArgs(addr)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		if _, err := msmux.SelectOneOf([]string{libp2ptls.ID}, raw); err != nil {
			t.Fatal(err)
		}
		c := tls.Client(raw, cfg)
		if err := c.HandshakeContext(ctx); err != nil {
			t.Fatal(err)
		}
		return c.ConnectionState().PeerCertificates[0]
	}
	_, at, err := manet.DialArgs(addr.Decapsulate(ma.StringCast("/quic-v1")))
	if err != nil {
		t.Fatal(err)
	}
	c, err := quicgo.DialAddr(ctx, at, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseWithError(0, "")
	return c.ConnectionState().TLS.PeerCertificates[0]
}
