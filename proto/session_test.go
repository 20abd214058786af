package proto

import (
	"math"
	"testing"
)

func TestBadOpens(t *testing.T) {
	good := goldenMail()["open"].(*Open)
	for name, change := range map[string]func(*Open){
		"no session":            func(o *Open) { o.Session = 0 },
		"no box":                func(o *Open) { o.Box = "" },
		"a mode of the future":  func(o *Open) { o.Mode = ReadFailover + 1 },
		"a negative mode":       func(o *Open) { o.Mode = -1 },
		"more than all credit":  func(o *Open) { o.Credit = MaxCredit + 1 },
		"all credit of 32 bits": func(o *Open) { o.Credit = math.MaxUint32 },
	} {
		checkBad(t, good, (*Open).Check, name, ErrBadMail, change)
	}
	if err := (&Open{Session: 1, End: true}).Check(); err != nil {
		t.Errorf("an end: %v", err)
	}
	opened := goldenMail()["opened_moved"].(*Opened)
	checkBad(t, opened, (*Opened).Check, "opened without a session", ErrBadMail, func(o *Opened) { o.Session = 0 })
	checkBad(t, opened, (*Opened).Check, "opened, and moved to nobody", ErrBadMail, func(o *Opened) { o.Home = nil })
	checkBad(t, opened, (*Opened).Check, "opened, and a home", ErrBadMail, func(o *Opened) { o.Code = CodeOK })
}

func TestBadDeliveries(t *testing.T) {
	good := goldenMail()["deliver"].(*Deliver)
	for name, change := range map[string]func(*Deliver){
		"no session":     func(d *Deliver) { d.Session = 0 },
		"no boot":        func(d *Deliver) { d.Boot = 0 },
		"no count":       func(d *Deliver) { d.First = 0 },
		"beyond 64 bits": func(d *Deliver) { d.First = math.MaxUint64 - 1 },
		"none":           func(d *Deliver) { d.Deliveries, d.Letters = nil, nil },
		"mail 0":         func(d *Deliver) { d.Deliveries[1].Seq = 0 },
		"attempt 0":      func(d *Deliver) { d.Deliveries[0].Attempt = 0 },
		"another letter": func(d *Deliver) { d.Deliveries = d.Deliveries[:1] },
	} {
		checkBad(t, good, (*Deliver).Check, name, ErrBadMail, change)
	}
	checkBad(t, good, (*Deliver).Check, "a letter less", ErrBadLetter, func(d *Deliver) { d.Letters = d.Letters[:len(d.Letters)/2] })
}

func TestBadSettlements(t *testing.T) {
	good := goldenMail()["settle"].(*Settle)
	for name, change := range map[string]func(*Settle){
		"no session":           func(s *Settle) { s.Session = 0 },
		"no ref":               func(s *Settle) { s.Ref = 0 },
		"none":                 func(s *Settle) { s.Settlements = nil },
		"mail 0":               func(s *Settle) { s.Settlements[0].Seq = 0 },
		"boot 0":               func(s *Settle) { s.Settlements[0].Boot = 0 },
		"delivery 0":           func(s *Settle) { s.Settlements[1].Delivery = 0 },
		"no verb":              func(s *Settle) { s.Settlements[1].Verb = 0 },
		"a verb of the future": func(s *Settle) { s.Settlements[1].Verb = SettleBounce + 1 },
		"a negative verb":      func(s *Settle) { s.Settlements[1].Verb = -1 },
		"a delay of ages":      func(s *Settle) { s.Settlements[1].DelayMs = math.MaxUint64 },
	} {
		checkBad(t, good, (*Settle).Check, name, ErrBadMail, change)
	}
	answer, check := goldenMail()["settled"].(*Settled), func(s *Settled) error { return s.Check(2) }
	for name, change := range map[string]func(*Settled){
		"an answer to no session":    func(s *Settled) { s.Session = 0 },
		"an answer to no ref":        func(s *Settled) { s.Ref = 0 },
		"one that counts":            func(s *Settled) { s.Unsettled[0].Code = CodeOK },
		"one that was not asked for": func(s *Settled) { s.Unsettled[0].Index = 2 },
		"one twice":                  func(s *Settled) { s.Unsettled = append(s.Unsettled, s.Unsettled[0]) },
	} {
		checkBad(t, answer, check, name, ErrBadMail, change)
	}
}
