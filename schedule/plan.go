package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // a schedule means the same on a machine without time zone data

	"github.com/robfig/cron/v3"
)

// A Plan is a parsed schedule.
type Plan struct {
	spec  *cron.SpecSchedule // in UTC where the hour is fixed: it is read as wall clock time
	zone  *time.Location
	fixed bool // the hour is not *
}

// ErrPlan is returned for text that is not a valid plan.
var ErrPlan = errors.New("schedule: invalid plan")

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// anyHour is set in the hours of a plan that follows elapsed time.
const anyHour = 1 << 63

// Parse reads five fields (minute, hour, day of the month, month, day of the week) or a
// word like @daily, in the time zone with this IANA name; empty means UTC.
func Parse(text, zone string) (Plan, error) {
	if strings.Contains(text, "TZ=") {
		return Plan{}, fmt.Errorf("%w: %.60q: set the time zone separately", ErrPlan, text)
	}
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return Plan{}, fmt.Errorf("%w: time zone %.60q: must be an IANA name like Europe/Paris, or UTC", ErrPlan, zone)
	}
	s, err := parser.Parse(text)
	if err != nil {
		return Plan{}, fmt.Errorf("%w: %.60q: must be five fields, minute hour day month weekday, or a word like @daily: %w", ErrPlan, text, err)
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok {
		return Plan{}, fmt.Errorf("%w: %.60q: @every has no fixed times: write */5 * * * * for every five minutes", ErrPlan, text)
	}
	p := Plan{spec: spec, zone: loc, fixed: spec.Hour&anyHour == 0}
	spec.Location = loc
	if p.fixed {
		spec.Location = time.UTC
	}
	if p.Next(time.Unix(0, 0)).IsZero() {
		return Plan{}, fmt.Errorf("%w: %.60q never occurs", ErrPlan, text)
	}
	return p, nil
}

// Next returns the first time after t, zero if there is none within five years.
func (p Plan) Next(t time.Time) time.Time {
	if !p.fixed {
		return p.spec.Next(t).UTC()
	}
	for wall := p.wall(t); ; {
		if wall = p.spec.Next(wall); wall.IsZero() {
			return time.Time{}
		}
		if at := p.instant(wall); at.After(t) {
			return at
		}
	}
}

// wall returns the wall clock time at t, as if it were UTC.
func (p Plan) wall(t time.Time) time.Time {
	t = t.In(p.zone)
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant returns when the wall clock first shows this time, or jumps past it.
func (p Plan) instant(wall time.Time) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, p.zone)
	begin, end := at.ZoneBounds()
	switch shown := p.wall(at); {
	case shown.After(wall):
		return begin.UTC()
	case shown.Before(wall):
		return end.UTC()
	}
	if !begin.IsZero() {
		_, now := at.Zone()
		_, before := begin.Add(-time.Nanosecond).Zone()
		if first := at.Add(time.Duration(now-before) * time.Second); first.Before(begin) && p.wall(first).Equal(wall) {
			return first.UTC()
		}
	}
	return at.UTC()
}
