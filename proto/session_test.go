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
		"an end of the future":  func(o *Open) { o.End = ReadLeave + 1 },
		"a negative end":        func(o *Open) { o.End = -1 },
		"no credit":             func(o *Open) { o.Credit = 0 },
		"more than all credit":  func(o *Open) { o.Credit = MaxCredit + 1 },
		"all credit of 32 bits": func(o *Open) { o.Credit = math.MaxUint32 },
	} {
		checkBad(t, good, (*Open).Check, name, ErrBadMail, change)
	}
	opened := goldenMail()["opened_moved"].(*Opened)
	checkBad(t, opened, (*Opened).Check, "opened without a session", ErrBadMail, func(o *Opened) { o.Session = 0 })
	checkBad(t, opened, (*Opened).Check, "opened, and moved to nobody", ErrBadMail, func(o *Opened) { o.Home = nil })
	checkBad(t, opened, (*Opened).Check, "moved, and ended", ErrBadMail, func(o *Opened) { o.Ended = true })
	checkBad(t, opened, (*Opened).Check, "moved, and resumed", ErrBadMail, func(o *Opened) { o.Resumed = true })
	checkBad(t, opened, (*Opened).Check, "opened, and a home", ErrBadMail, func(o *Opened) { o.Code = CodeOK })
}

func TestBadDeliveries(t *testing.T) {
	good := goldenMail()["deliver"].(*Deliver)
	for name, change := range map[string]func(*Deliver){
		"no session":     func(d *Deliver) { d.Session = 0 },
		"no boot":        func(d *Deliver) { d.Boot = 0 },
		"no number":      func(d *Deliver) { d.Deliveries[0].Number = 0 },
		"a number twice": func(d *Deliver) { d.Deliveries[1].Number = d.Deliveries[0].Number },
		"half an origin": func(d *Deliver) { d.Deliveries[0].Origin = seq(5, 16) },
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
		"no box":               func(s *Settle) { s.Box = "" },
		"no ref":               func(s *Settle) { s.Ref = 0 },
		"none":                 func(s *Settle) { s.Settlements = nil },
		"mail 0":               func(s *Settle) { s.Settlements[0].Seq = 0 },
		"boot 0":               func(s *Settle) { s.Settlements[0].Boot = 0 },
		"delivery 0":           func(s *Settle) { s.Settlements[1].Delivery = 0 },
		"no verb":              func(s *Settle) { s.Settlements[1].Verb = 0 },
		"a verb of the future": func(s *Settle) { s.Settlements[1].Verb = SettleReturn + 1 },
		"a negative verb":      func(s *Settle) { s.Settlements[1].Verb = -1 },
		"a delay of ages":      func(s *Settle) { s.Settlements[1].DelayMs = math.MaxUint64 },
	} {
		checkBad(t, good, (*Settle).Check, name, ErrBadMail, change)
	}
	answer, check := goldenMail()["settled"].(*Settled), func(s *Settled) error { return s.Check(3) }
	for name, change := range map[string]func(*Settled){
		"a lease not asked for":      func(s *Settled) { s.Extended[0].Index = 3 },
		"a lease twice":              func(s *Settled) { s.Extended = append(s.Extended, s.Extended[0]) },
		"a refusal that counts":      func(s *Settled) { s.Code = CodeDenied },
		"an answer to no ref":        func(s *Settled) { s.Ref = 0 },
		"one that counts":            func(s *Settled) { s.Unsettled[0].Code = CodeOK },
		"a code for all of it":       func(s *Settled) { s.Unsettled[0].Code = CodeDenied },
		"one that was not asked for": func(s *Settled) { s.Unsettled[0].Index = 3 },
		"one twice":                  func(s *Settled) { s.Unsettled = append(s.Unsettled, s.Unsettled[0]) },
	} {
		checkBad(t, answer, check, name, ErrBadMail, change)
	}
}

func TestBadBoxParts(t *testing.T) {
	good, first := goldenMail()["box_part"].(*BoxPart), goldenMail()["box_part_first"].(*BoxPart)
	for name, change := range map[string]func(*BoxPart){
		"no box":                  func(p *BoxPart) { p.Box = "" },
		"half a handover":         func(p *BoxPart) { p.Handover = seq(7, 8) },
		"no generation":           func(p *BoxPart) { p.Generation = 0 },
		"a generation of ages":    func(p *BoxPart) { p.Generation = MaxGeneration + 1 },
		"records of no part":      func(p *BoxPart) { p.Number = 0 },
		"records of the first":    func(p *BoxPart) { p.Number = 1 },
		"no records":              func(p *BoxPart) { p.Records, p.Origins, p.Last = nil, nil, false },
		"settings of a later one": func(p *BoxPart) { p.Settings = []byte("x") },
		"half an origin":          func(p *BoxPart) { p.Origins[0] = seq(5, 16) },
		"more origins than mails": func(p *BoxPart) { p.Origins = [][]byte{seq(5, 32), seq(5, 32), seq(5, 32)} },
		"dropped with a part":     func(p *BoxPart) { p.Dropped = true },
	} {
		checkBad(t, good, (*BoxPart).Check, name, ErrBadMail, change)
	}
	checkBad(t, first, (*BoxPart).Check, "a first one without settings", ErrBadMail, func(p *BoxPart) { p.Settings = nil })
	checkBad(t, first, (*BoxPart).Check, "a first one that is the last", ErrBadMail, func(p *BoxPart) { p.Last = true })
	taken := goldenMail()["box_taken"].(*BoxTaken)
	checkBad(t, taken, (*BoxTaken).Check, "taken of no box", ErrBadMail, func(p *BoxTaken) { p.Box = "" })
	checkBad(t, taken, (*BoxTaken).Check, "taken in no handover", ErrBadMail, func(p *BoxTaken) { p.Handover = nil })
	checkBad(t, taken, (*BoxTaken).Check, "a state of the future", ErrBadMail, func(p *BoxTaken) { p.State = CopyServed + 1 })
}
