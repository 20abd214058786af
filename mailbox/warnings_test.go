package mailbox

import (
	"testing"

	"github.com/balefire/balefire/wire"
)

// Who is named in allow lists and is no member is looked up for those boxes alone that somebody looks
// at: metrics show it of none.
func TestWarningsAreForThoseWhoLook(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for _, name := range []string{"a", "b", "c"} {
			f.mailbox(name, func(s *wire.MailboxSettings) { s.Allow = &[]string{"peer:nobody"} })
		}
		asked := 0
		f.views.unknown = func([]string) []wire.Note {
			asked++
			return []wire.Note{{Code: wire.NoteMemberAbsent}}
		}
		f.figures("balefire_mailbox_mails")
		if asked > 0 {
			t.Errorf("the metrics ask about %d boxes", asked)
		}
		asked = 0
		page, err := f.Page(t.Context(), wire.BoxMailbox, "", 1)
		f.must(err)
		if asked != 1 || len(page.Items) != 1 || len(page.Items[0].Warnings) != 1 {
			t.Errorf("it is asked about %d boxes for a page of %+v", asked, page.Items)
		}
	})
}
