package identity

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
)

// A CheckError explains why an envelope was refused, with the code for its
// sender.
type CheckError struct {
	Code proto.Code
	Err  error
}

func (e *CheckError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *CheckError) Unwrap() error { return e.Err }

// Refusal returns the code for the sender.
func (e *CheckError) Refusal() proto.Code { return e.Code }

func refuse(code proto.Code, format string, args ...any) error {
	return &CheckError{code, fmt.Errorf("check envelope: "+format, args...)}
}

// An unknownPeerError names a peer that is not a member. It formats its text only
// when read: refusing unknown peers must stay cheap.
type unknownPeerError proto.PeerID

func (e unknownPeerError) Error() string {
	return fmt.Sprintf("check envelope: %s is not a member", proto.PeerID(e))
}

// Checks holds what an envelope is checked against. A value may be used by many
// goroutines as long as it is not modified.
type Checks struct {
	Mesh     Mesh
	Self     proto.PeerID
	Member   func(proto.PeerID) (Member, bool) // returns a member, even one whose certificate has expired and may be renewed; false: unknown or revoked; nil: membership is not checked
	Now      time.Time
	Signers  time.Time // the origin's clock now, which its envelope is dated by; zero: Now. Nothing else is judged by it
	Doubted  bool      // the clock behind Now is doubted: it refuses nothing permanently
	Verifier *Verifier
	Keys     *Keys
}

// Verified is an envelope that passed every check.
type Verified struct {
	Header  proto.Header
	Content []byte   // a marshaled proto.Content or proto.Outcome, according to Header.What
	Key     [32]byte // of the content; it also opens streamed bodies
}

// Check makes every check of an envelope that needs no store, cheap ones first:
// format and size, mesh, target, membership, time, signature, key, body. So an
// unknown peer costs a microsecond and a forged envelope one signature check. All
// errors are *CheckError. Whether the origin may ask for the kind, and whether
// the task is known, remains to be checked.
func (c *Checks) Check(env *proto.Envelope) (Verified, error) { return c.check(env, false) }

// CheckInPlace is Check for an envelope whose sealed body is not needed afterwards: the
// content takes its memory.
func (c *Checks) CheckInPlace(env *proto.Envelope) (Verified, error) { return c.check(env, true) }

func (c *Checks) check(env *proto.Envelope, inPlace bool) (Verified, error) {
	h, err := checkFormat(env)
	if err != nil {
		return Verified{}, err
	}
	if h.Mesh != c.Mesh.ID {
		return Verified{}, refuse(proto.CodeDenied, "it is of mesh %s, this is %s", h.Mesh, c.Mesh.ID)
	}
	if h.Target != c.Self {
		return Verified{}, refuse(proto.CodeDenied, "it is for %s, this is %s", h.Target.Short(), c.Self.Short())
	}
	if c.Member != nil {
		if err := c.checkOrigin(&h); err != nil {
			return Verified{}, err
		}
	}
	if err := c.checkTime(&h); err != nil {
		return Verified{}, err
	}
	proof := Proof{Index: env.GetIndex(), Path: env.GetPath()}
	leaf := EnvelopeLeaf(env.GetHeader(), env.GetBody(), h.What)
	if err := c.Verifier.Verify(h.Origin, leaf, proof, env.GetSignature()); err != nil {
		return Verified{}, refuse(proto.CodeBadSignature, "from %s: %w", h.Origin.Short(), err)
	}
	if c.Keys.outdated(env.GetSlot(), c.Now) {
		return Verified{}, refuse(proto.CodeBadKey, "from %s: sealed to a key that was replaced long ago", h.Origin.Short())
	}
	var dst []byte
	if inPlace {
		dst = env.Body[:0]
	}
	content, key, err := c.Keys.open(dst, env, &h)
	switch {
	case errors.Is(err, ErrBadKey):
		return Verified{}, refuse(proto.CodeBadKey, "from %s: %w", h.Origin.Short(), err)
	case err != nil:
		return Verified{}, refuse(proto.CodeBadForm, "from %s: %w", h.Origin.Short(), err)
	}
	return Verified{Header: h, Content: content, Key: key}, nil
}

// checkFormat parses the header and checks the sizes against it and the limits.
func checkFormat(env *proto.Envelope) (proto.Header, error) {
	var none proto.Header
	switch {
	case len(env.GetHeader()) > proto.MaxHeader:
		return none, refuse(proto.CodeTooLarge, "a header of %d bytes, the limit is %d", len(env.GetHeader()), proto.MaxHeader)
	case len(env.GetBody()) > proto.MaxSealed:
		return none, refuse(proto.CodeTooLarge, "a body of %d bytes, the limit is %d", len(env.GetBody()), proto.MaxSealed)
	}
	h, err := proto.ParseHeader(env.GetHeader())
	if errors.Is(err, proto.ErrCritical) || errors.Is(err, proto.ErrVersion) {
		return none, refuse(proto.CodeUnknownVersion, "%w", err)
	} else if err != nil {
		return none, refuse(proto.CodeBadForm, "%w", err)
	}
	if _, err := suiteOf(h.Suite); err != nil {
		return none, refuse(proto.CodeUnknownVersion, "%w", err)
	}
	if int(h.SealedLen) != len(env.GetBody()) || h.SealedLen < sealOverhead {
		return none, refuse(proto.CodeBadForm, "a body of %d bytes, the header says %d", len(env.GetBody()), h.SealedLen)
	}
	if h.ID.IsZero() {
		return none, refuse(proto.CodeBadForm, "it has no id")
	}
	if _, size, ok := h.Object(); ok {
		if _, err := proto.PlainSize(size); err != nil {
			return none, refuse(proto.CodeBadForm, "%w", err)
		}
	}
	return h, nil
}

// checkOrigin checks whether the origin may send the envelope.
func (c *Checks) checkOrigin(h *proto.Header) error {
	m, ok := c.Member(h.Origin)
	if !ok {
		return &CheckError{proto.CodeDenied, unknownPeerError(h.Origin)}
	}
	role := RoleSend
	if h.What == proto.WhatResult {
		role = RoleWork
	}
	if !m.HasRole(role) {
		return refuse(proto.CodeDenied, "%q does not have the role %q", m.Name, role)
	}
	if err := checkTime(m.NotBefore, m.NotAfter, c.Now); err != nil {
		// It may be renewed at any moment, so the task waits.
		return refuse(proto.CodeBusy, "the certificate of %q: %w", m.Name, err)
	}
	return nil
}

// checkTime checks the envelope's lifetime against the clock of its origin, whose
// signature dates it. A result cannot be too late: the commit rule of its home
// decides whether it counts, and a wrong clock of the node that ran the task must
// not lose it.
func (c *Checks) checkTime(h *proto.Header) error {
	if h.What == proto.WhatResult {
		return nil
	}
	now, skew := c.Now.UnixMilli(), proto.Skew.Milliseconds()
	if !c.Signers.IsZero() {
		now = c.Signers.UnixMilli()
	}
	switch {
	case h.NotAfter-h.Created > proto.MaxTTL.Milliseconds():
		return refuse(proto.CodeBadForm, "it lives longer than %d days", int(proto.MaxTTL.Hours()/24))
	case h.NotAfter <= now-skew && c.Doubted:
		return refuse(proto.CodeBusy, "it ended %s by a clock that is doubted here; it may be accepted later", time.UnixMilli(h.NotAfter).UTC().Format(time.RFC3339))
	case h.NotAfter <= now-skew:
		return refuse(proto.CodeExpired, "it ended %s", time.UnixMilli(h.NotAfter).UTC().Format(time.RFC3339))
	case h.Created > now+skew:
		// One of the two clocks is wrong: the envelope may be accepted later.
		return refuse(proto.CodeClock, "it is from the future, %s", time.UnixMilli(h.Created).UTC().Format(time.RFC3339))
	}
	return nil
}

// BadForm returns the refusal of content that no correct node makes.
func BadForm(format string, args ...any) error {
	return &CheckError{Code: proto.CodeBadForm, Err: fmt.Errorf(format, args...)}
}

// CheckBody checks a body against its signed size and digest (I9).
func CheckBody(body []byte, size uint64, digest []byte) error {
	if sum := sha256.Sum256(body); uint64(len(body)) != size || len(digest) > 0 && string(sum[:]) != string(digest) || len(digest) == 0 && size > 0 {
		return BadForm("the body does not match its digest (I9)")
	}
	return nil
}

// CheckContent checks the body of a task against the signed size and digest, or what it
// says about its object against the header (I9).
func CheckContent(h *proto.Header, c *proto.Content) error {
	if !h.Streamed() {
		return CheckBody(c.GetBody(), c.GetBodySize(), c.GetBodyDigest())
	}
	if err := c.GetObject().Check(h, c.GetBodySize()); err != nil {
		return BadForm("%w", err)
	}
	return nil
}
