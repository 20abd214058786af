package mailbox

import (
	"errors"
	"fmt"
	"strings"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// noBox is the error for a box or subscription that does not exist.
func noBox(p place, sub string) error {
	add := "mailbox add " + strings.TrimSuffix(strings.TrimPrefix(p.text, proto.AgentPrefix), "@")
	if name, _, ok := strings.Cut(strings.TrimPrefix(p.text, proto.AgentPrefix), "@"); ok {
		add = "mailbox add " + name
	}
	if p.kind == wire.BoxTopic {
		add = "topic add " + strings.TrimPrefix(p.text, proto.TopicPrefix)
		if sub != "" {
			add = "sub add " + strings.TrimPrefix(p.text, proto.TopicPrefix) + " " + sub
		}
	}
	return fmt.Errorf("%w: there is no %s on this node; make it with balefire-node %s", wire.ErrNotFound, p.path(sub), add)
}

// failure returns an error of the broker in the terms of the API.
func failure(p place, sub string, err error) error {
	var held *box.HeldError
	var refused *mail.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, box.ErrNotFound):
		return noBox(p, sub)
	case errors.As(err, &held):
		return fmt.Errorf("%w: %s has one reader at a time, and %q reads it", wire.ErrHeld, p.path(sub), held.Reader)
	case errors.Is(err, box.ErrTooManySessions):
		return fmt.Errorf("%w: %s has %d readers, the limit", wire.ErrFull, p.path(sub), box.MaxSessions)
	case errors.As(err, &refused):
		return refusal(refused.Code, refused.Detail)
	case errors.Is(err, mail.ErrStopped), errors.Is(err, store.ErrClosed):
		return fmt.Errorf("%w: %w", wire.ErrDraining, err)
	case errors.Is(err, store.ErrFull):
		return fmt.Errorf("%w: %w", wire.ErrFull, err)
	case errors.Is(err, mail.ErrGone):
		return fmt.Errorf("%w: %s was removed", wire.ErrNotFound, p.path(sub))
	}
	return err
}

// refusal returns the error for a code with which a box refuses.
func refusal(code proto.Code, detail string) error {
	kinds := map[proto.Code]error{
		proto.CodeNoHandler: wire.ErrNotFound, proto.CodeFull: wire.ErrFull, proto.CodeDraining: wire.ErrRefused,
		proto.CodeBadForm: wire.ErrInvalid, proto.CodeTooLarge: wire.ErrTooLarge, proto.CodeExpired: wire.ErrInvalid,
		proto.CodeUnknownVersion: wire.ErrInvalid, proto.CodeDenied: wire.ErrKeyConflict,
	}
	if kind := kinds[code]; kind != nil {
		return fmt.Errorf("%w: %s", kind, detail)
	}
	return fmt.Errorf("%w: %s: %s", wire.ErrRefused, code, detail)
}

// unknown marks the error of a call of which nobody knows whether it took effect.
func unknown(err error) error {
	if errors.Is(err, mail.ErrUnknown) {
		return fmt.Errorf("%w: %w", store.ErrUnknown, err)
	}
	return err
}

func invalid(format string, a ...any) error {
	return fmt.Errorf("%w: %s", wire.ErrInvalid, fmt.Sprintf(format, a...))
}
