-- Chats: streams, ends, other clients, restarts, and what is shown of them.

local t = require("harness")

local api = vim.api

--- Returns the window that shows the conversation.
local function window_of(chat)
  return vim.fn.win_findbuf(chat.view.buffer)[1]
end

--- Records what the conversation shows whenever it changes.
local function follow(chat)
  local states = {}
  api.nvim_buf_attach(chat.view.buffer, false, {
    on_lines = function()
      states[#states + 1] = t.shown(chat)
    end,
  })
  return states
end

--- Waits until the chat shows a text.
local function wait_shown(chat, part, seconds)
  t.wait("the chat shows " .. part, function()
    return t.shown(chat):find(part, 1, true)
  end, seconds)
end

return {
  { "answer streams and becomes its record", function()
    local chat = t.new_chat()
    local states = follow(chat)
    t.turn(chat, "hello you")
    local shown = t.shown(chat)
    t.contains(shown, "You  #1 ")
    t.contains(shown, "You said: hello you")
    t.contains(shown, "```lua\nprint('hello')\n```\n\nThat is all.")
    t.contains(shown, "second point, with ünïcödé 🙂")
    assert(not shown:find("sending"), shown)
    -- The conversation only grows: nothing that was shown disappears for a moment.
    for _, state in ipairs(states) do
      t.contains(state, "hello you")
    end
    t.equal(2, #vim.tbl_filter(function(record)
      return record.type == "message"
    end, chat.records))
  end },
  { "answer of many pieces arrives in order", function()
    local chat = t.new_chat()
    t.turn(chat, "[pieces 300]")
    local expected = {}
    for number = 1, 300 do
      expected[number] = "piece " .. number
    end
    t.contains(t.shown(chat), table.concat(expected, "\n"))
  end },
  { "thinking is dimmed while it arrives and folded behind it", function()
    local chat = t.new_chat()
    t.turn(chat, "why? [think]")
    t.contains(t.shown(chat), "> Let me think about it.")
    local fold = chat.view.page.folds[1]
    api.nvim_win_call(window_of(chat), function()
      t.equal(fold.first + 1, vim.fn.foldclosed(fold.first + 1))
      t.contains(vim.fn.foldtextresult(fold.first + 1), "thinking, 1 line")
    end)
    local space = api.nvim_get_namespaces().ollm
    local from, to = { fold.first, 0 }, { fold.first, -1 }
    local marks = api.nvim_buf_get_extmarks(chat.view.buffer, space, from, to, { details = true })
    t.equal("OllmDim", marks[1][4].hl_group)
    -- A fold that the user opened stays open.
    api.nvim_win_call(window_of(chat), function()
      vim.cmd(("%dfoldopen"):format(fold.first + 1))
    end)
    t.turn(chat, "and now?")
    api.nvim_win_call(window_of(chat), function()
      t.equal(-1, vim.fn.foldclosed(fold.first + 1))
    end)
  end },
  { "Ctrl-C stops the answer, and what arrived stays", function()
    local chat = t.new_chat()
    chat:send("[pieces 3] [hang]")
    wait_shown(chat, "piece 3")
    chat.view:focus_prompt(false)
    t.type("<C-c>")
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
    t.contains(t.shown(chat), "piece 3\n\n(canceled)")
    assert(not t.shown(chat):find("error", 1, true), t.shown(chat))
    t.turn(chat, "next")
    t.contains(t.shown(chat), "You said: next")
  end },
  { "turn that is stopped before its answer says so", function()
    local chat = t.new_chat()
    chat:send("[pieces 0] [hang]")
    t.wait("it runs", function()
      return chat.turn.state == "running"
    end)
    chat:stop()
    wait_shown(chat, "Stopped before the answer began.")
  end },
  { "message that is stopped at once is not answered", function()
    local chat = t.new_chat()
    chat:send("[pieces 2] [hang]")
    t.equal("sending", chat.turn.state)
    t.equal(true, chat:stop())
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
    local is_back = api.nvim_buf_get_lines(chat.view.prompt, 0, -1, false)[1] == "[pieces 2] [hang]"
    local is_recorded = t.shown(chat):find("[pieces 2] [hang]", 1, true) ~= nil
    t.equal(true, is_back or is_recorded)
    -- The same while the session exists already.
    t.turn(chat, "[pieces 1]")
    chat:send("[pieces 2] [hang]")
    chat:stop()
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
  end },
  { ":Ollm stop stops, and says if nothing runs", function()
    local chat = t.new_chat()
    chat:send("[pieces 1] [hang]")
    wait_shown(chat, "piece 1")
    vim.cmd("Ollm stop")
    wait_shown(chat, "(canceled)")
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
    vim.cmd("Ollm stop")
    t.wait_notice("no answer is running")
  end },
  { "error is a readable line with its hint", function()
    local chat = t.new_chat()
    t.turn(chat, "[fail]")
    t.contains(t.shown(chat), "error: model echo at http")
    t.contains(t.shown(chat), "the model failed, as it was told to")
    t.contains(t.shown(chat), "\n  try: ollmctl models running")
    t.lacks(t.shown(chat), "\n\n  try: ")
    t.turn(chat, "[pieces 2] [break]")
    t.contains(t.shown(chat), "piece 2")
    t.contains(t.shown(chat), "the answer broke off, as it was told to")
    -- The next message removes the remark.
    t.turn(chat, "fine")
    assert(not t.shown(chat):find("error:", 1, true), t.shown(chat))
  end },
  { "missing model is named before the first message, with the command that helps", function()
    t.new_home()
    local config = vim.fn.readfile(t.home .. "/config.yaml")
    vim.fn.writefile(vim.list_slice(config, 3), t.home .. "/config.yaml")
    local chat = t.new_chat()
    wait_shown(chat, "set models.default")
    t.contains(t.shown(chat), "  try: :Ollm model")
    chat.view:focus_prompt(false)
    t.type("ihello<C-s>")
    t.wait("the message is back in the prompt", function()
      return chat.turn == nil and api.nvim_buf_get_lines(chat.view.prompt, 0, -1, false)[1] == "hello"
    end)
    vim.cmd("Ollm model echo")
    t.wait_notice("the model is echo")
    t.type("<Esc><CR>")
    wait_shown(chat, "You said: hello")
  end },
  { "message that is refused returns to the prompt", function()
    local chat = t.new_chat()
    vim.cmd("Ollm model no-such-model")
    chat.view:focus_prompt(false)
    api.nvim_buf_set_lines(chat.view.prompt, 0, -1, false, { "first line", "second line" })
    t.type("<CR>")
    wait_shown(chat, "error: ")
    wait_shown(chat, "try: ")
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
    local is_recorded = t.shown(chat):find("first line", 1, true) ~= nil
    local prompt = table.concat(api.nvim_buf_get_lines(chat.view.prompt, 0, -1, false), "\n")
    -- The message is in one of the two places, whichever the daemon decided.
    t.equal(is_recorded and "" or "first line\nsecond line", prompt)
  end },
  { "keys send from both modes and empty the prompt, and undo brings the text back", function()
    local chat = t.new_chat()
    chat.view:focus_prompt(false)
    t.type("ihello from insert mode<C-s>")
    t.wait("the end of the turn", function()
      return chat.turn == nil and #chat.records > 0
    end)
    t.contains(t.shown(chat), "You said: hello from insert mode")
    t.equal({ "" }, api.nvim_buf_get_lines(chat.view.prompt, 0, -1, false))
    t.type("<Esc>u")
    t.equal({ "hello from insert mode" }, api.nvim_buf_get_lines(chat.view.prompt, 0, -1, false))
  end },
  { "second message has to wait for the first", function()
    local chat = t.new_chat()
    chat:send("[pieces 1] [hang]")
    wait_shown(chat, "piece 1")
    t.equal(false, chat:send("too early"))
    t.wait_notice(":Ollm stop")
    chat:stop()
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
  end },
  { "reader who scrolled up stays there, and one at the end follows", function()
    local chat = t.new_chat()
    t.turn(chat, "[pieces 80]")
    local window = window_of(chat)
    -- A person who sends a message wants to see the answer, whatever was read before.
    api.nvim_win_set_cursor(window, { 20, 0 })
    chat:send("[pieces 60]")
    t.equal(api.nvim_buf_line_count(chat.view.buffer), api.nvim_win_get_cursor(window)[1])
    api.nvim_win_set_cursor(window, { 20, 0 })
    local before = api.nvim_win_call(window, vim.fn.winsaveview)
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
    vim.cmd.redraw()
    local after = api.nvim_win_call(window, vim.fn.winsaveview)
    t.equal({ before.lnum, before.topline }, { after.lnum, after.topline })
    api.nvim_win_set_cursor(window, { api.nvim_buf_line_count(chat.view.buffer), 0 })
    t.turn(chat, "[pieces 60]")
    t.equal(api.nvim_buf_line_count(chat.view.buffer), api.nvim_win_get_cursor(window)[1])
  end },
  { "conversation cannot be edited, and is highlighted as Markdown", function()
    local chat = t.new_chat()
    t.turn(chat, "hello")
    t.equal(false, vim.bo[chat.view.buffer].modifiable)
    t.equal(false, vim.bo[chat.view.buffer].modified)
    local highlighter = vim.treesitter.highlighter.active[chat.view.buffer]
    assert(highlighter or vim.bo[chat.view.buffer].syntax == "markdown", "no highlighting")
  end },
  { "bar shows the window, the model and the title", function()
    local chat = t.new_chat()
    t.turn(chat, "hello bar")
    t.wait("the bar", function()
      local bar = vim.wo[window_of(chat)].winbar
      return bar:find("tokens (", 1, true) and bar:find("echo", 1, true) and bar:find("hello bar", 1, true)
    end)
  end },
  { "control characters in titles and answers are not shown", function()
    local chat = t.new_chat()
    t.turn(chat, "safe")
    t.call("session.update", { sessionId = chat:id(), title = "bad\27]0;x\7\27[31mtitle\nnext" })
    t.wait("the title", function()
      return chat.session.title:find("title")
    end)
    t.wait("the bar shows it", function()
      return vim.wo[window_of(chat)].winbar:find("badtitle next", 1, true)
    end)
    t.equal(nil, vim.wo[window_of(chat)].winbar:find("[%z\1-\31]"))
    local asked = t.answer("badtitle")
    vim.cmd("Ollm sessions")
    t.wait("the picker", function()
      return asked.is_done
    end)
    for _, line in ipairs(asked.lines) do
      t.equal(nil, line:find("[%z\1-\31\127]"))
    end
    -- A message of another program with sequences in it.
    local message = { role = "assistant", content = "a\27[2Jb\7c" }
    t.call("session.record", { sessionId = chat:id(), message = message })
    wait_shown(chat, "abc")
  end },
  { "turn of another client is shown while it streams", function()
    local slow = t.model_server("--pause", "60")
    t.new_home(slow)
    local chat = t.new_chat()
    t.turn(chat, "first")
    local other = vim.system({ vim.env.OLLM_BIN .. "/ollmctl", "chat", "-c", "from elsewhere [pieces 60]" }, {})
    wait_shown(chat, "from elsewhere")
    t.wait("the bar says so", function()
      return vim.wo[window_of(chat)].winbar:find("another client asks", 1, true)
    end)
    wait_shown(chat, "piece 5")
    t.equal(nil, t.shown(chat):find("piece 60", 1, true))
    -- A chat that is closed leaves the turn running, and shows all of it when it is opened again.
    local id = chat:id()
    vim.api.nvim_buf_delete(chat.view.buffer, { force = true })
    chat = require("ollm.chat").for_session(id)
    chat:open()
    wait_shown(chat, "piece 7")
    assert(chat.foreign and #chat.foreign.answer > 0, "the answer is streamed")
    t.contains(t.shown(chat), "piece 1")
    wait_shown(chat, "piece 60")
    t.wait("the end", function()
      return chat.foreign == nil
    end)
    t.equal(0, other:wait(10000).code)
    local _, n = t.shown(chat):gsub("piece 60\n?", "")
    t.equal(1, n)
    t.wait("the bar is as before", function()
      return not vim.wo[window_of(chat)].winbar:find("another client", 1, true)
    end)
  end },
  { "another client stops and undoes, and the chat follows", function()
    local chat = t.new_chat()
    t.turn(chat, "keep this")
    chat:send("[pieces 2] [hang]")
    wait_shown(chat, "piece 2")
    t.call("chat.cancel", { sessionId = chat:id() })
    wait_shown(chat, "(canceled)")
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
    t.call("session.undo", { sessionId = chat:id() })
    t.wait("the undone turn is gone", function()
      return not t.shown(chat):find("piece 2", 1, true)
    end)
    t.contains(t.shown(chat), "keep this")
    t.call("session.redo", { sessionId = chat:id() })
    wait_shown(chat, "piece 2")
    t.call("session.delete", { sessionId = chat:id() })
    wait_shown(chat, "The session was deleted")
    t.turn(chat, "a new one")
    t.contains(t.shown(chat), "You said: a new one")
  end },
  { "daemon that is killed in a turn: the chat says so, and goes on after a restart", function()
    t.new_home(t.model_server("--pause", "600"))
    local chat = t.new_chat()
    t.turn(chat, "before [pieces 1]")
    chat:send("[pieces 5] [hang]")
    wait_shown(chat, "piece 5")
    -- The daemon records every second what has arrived.
    t.wait("the partial answer is recorded", function()
      local page = t.call("session.get", { sessionId = chat:id() })
      return vim.iter(page.records):any(function(record)
        return record.type == "custom" and record.custom.name == "ollm.partialAnswer"
      end)
    end)
    t.kill_daemon()
    wait_shown(chat, "error: the daemon ended during this answer")
    t.contains(t.shown(chat), "  try: :Ollm retry")
    t.contains(t.shown(chat), "piece 5")
    t.contains(vim.wo[window_of(chat)].winbar, "no daemon")
    t.ctl("daemon", "start")
    wait_shown(chat, "Connected again: ")
    wait_shown(chat, "(interrupted)")
    t.contains(t.shown(chat), "piece 2")
    assert(not vim.wo[window_of(chat)].winbar:find("no daemon", 1, true))
    t.turn(chat, "after [pieces 1]")
    t.contains(t.shown(chat), "after [pieces 1]")
  end },
  { "message to a stopped daemon starts it again", function()
    t.new_home()
    local chat = t.new_chat()
    t.turn(chat, "one")
    t.ctl("daemon", "stop")
    t.wait("the end of the connection", function()
      return chat.problem
    end)
    t.turn(chat, "two")
    t.contains(t.shown(chat), "You said: two")
    t.contains(t.shown(chat), "You said: one")
    wait_shown(chat, "Connected again")
  end },
  { "restart of the daemon is followed, and what changed meanwhile is shown", function()
    t.new_home()
    local chat = t.new_chat()
    t.turn(chat, "before")
    t.ctl("daemon", "restart")
    wait_shown(chat, "Connected again: nothing changed.")
    -- While no daemon is connected, another client asks something.
    t.kill_daemon()
    t.ctl("record", "--session", chat:id(), "recorded meanwhile")
    t.ctl("sessions", "rename", chat:id(), "A new title")
    wait_shown(chat, "recorded meanwhile")
    t.wait("the title", function()
      return vim.wo[window_of(chat)].winbar:find("A new title", 1, true)
    end)
  end },
  { "second chat says that it waits for the first, and answers behind it", function()
    local first, second = t.new_chat(), t.new_chat()
    first:send("[pieces 2] [hang]")
    wait_shown(first, "piece 2")
    second:open()
    second:send("meanwhile [pieces 3]")
    t.wait("the bar says so", function()
      return vim.wo[window_of(second)].winbar:find("waits for 1 call", 1, true)
    end)
    first:stop()
    wait_shown(first, "(canceled)")
    wait_shown(second, "piece 3")
    assert(not t.shown(first):find("piece 3", 1, true))
  end },
  { "draft that a restart forgot is made again", function()
    t.new_home()
    local chat = t.new_chat()
    local done = false
    chat:with_session(function()
      done = true
    end)
    t.wait("the draft", function()
      return done
    end)
    t.kill_daemon()
    t.turn(chat, "still here")
    t.contains(t.shown(chat), "You said: still here")
  end },
  { "retry asks again for an answer that failed", function()
    local chat = t.new_chat()
    chat:send("[pieces 2] [hang]")
    wait_shown(chat, "piece 2")
    t.wait("it runs", function()
      return chat.turn.state == "running"
    end)
    vim.cmd("Ollm stop")
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
    vim.cmd("Ollm retry")
    t.wait("the second answer", function()
      return chat.turn and #chat.turn.answer > 0
    end)
    vim.cmd("Ollm stop")
    t.wait("the end of the turn", function()
      return chat.turn == nil
    end)
    local _, n = t.shown(chat):gsub("piece 2", "")
    t.equal(1, n)
  end },
  { "long session loads its end, and the beginning on demand", function()
    local chat = t.new_chat()
    t.turn(chat, "the very first message")
    local rpc, n_done = require("ollm.rpc"), 0
    for number = 1, 260 do
      local message = { role = number % 2 == 1 and "user" or "assistant", content = "message " .. number }
      rpc.call("session.record", { sessionId = chat:id(), message = message }, nil, function(err)
        assert(not err, vim.inspect(err))
        n_done = n_done + 1
      end)
    end
    t.wait("the records", function()
      return n_done == 260
    end)
    local id = chat:id()
    vim.cmd("silent! %bwipeout!")
    vim.cmd("Ollm chat " .. id)
    local again
    t.wait("the session is open", function()
      again = require("ollm.chat").of_session(id)
      return again and t.shown(again):find("message 260", 1, true)
    end)
    t.contains(t.shown(again), "gE loads them")
    assert(not t.shown(again):find("the very first", 1, true))
    api.nvim_set_current_win(window_of(again))
    t.type("gE")
    wait_shown(again, "You said: the very first")
    assert(not t.shown(again):find("gE loads them", 1, true))
  end },
  { "closing one window closes both, and the session goes on", function()
    require("ollm").setup({ layout = "horizontal" })
    local chat = t.new_chat()
    vim.cmd("tab split")
    vim.cmd("enew")
    chat:open()
    t.equal(3, #api.nvim_tabpage_list_wins(0))
    vim.cmd.quit()
    t.wait("both are closed", function()
      return #api.nvim_tabpage_list_wins(0) == 1
    end)
    t.turn(chat, "hidden")
    t.contains(t.shown(chat), "You said: hidden")
  end },
  { "deleted chat is whole when it is opened again", function()
    for _, name in ipairs({ "buffer", "prompt" }) do
      local chat = t.new_chat()
      t.turn(chat, "keep this")
      local id = chat:id()
      vim.cmd.bdelete(chat.view[name])
      t.wait("the chat has ended", function()
        return not api.nvim_buf_is_valid(chat.view.buffer) and not api.nvim_buf_is_valid(chat.view.prompt)
      end)
      vim.cmd("Ollm chat " .. id)
      local again
      t.wait("the session is open", function()
        again = require("ollm.chat").of_session(id)
        return again and again ~= chat and t.shown(again):find("You said: keep this", 1, true)
      end)
      assert(#api.nvim_buf_get_keymap(again.view.prompt, "n") > 2)
    end
  end },
  { "wiped chat ends its turn", function()
    local chat = t.new_chat()
    chat:send("[pieces 1] [hang]")
    wait_shown(chat, "piece 1")
    local id = chat:id()
    api.nvim_buf_delete(chat.view.buffer, { force = true })
    t.wait("the answer is canceled", function()
      local page = t.call("session.get", { sessionId = id })
      local last = page.records[#page.records]
      return vim.iter(page.records):any(function(record)
        return record.message and record.message.finishReason == "canceled"
      end) and last
    end)
    t.equal(nil, require("ollm.chat").of_session(id))
  end },
  { "answer of 10 MB does not freeze the editor", function()
    local chat = t.new_chat()
    local stalls = require("stalls").start()
    t.turn(chat, "[bytes 10000000]")
    local longest = stalls.stop()
    -- The daemon ends answers of more than 8 MiB.
    t.contains(t.shown(chat):sub(-2000), "error: ")
    local size = api.nvim_buf_get_offset(chat.view.buffer, api.nvim_buf_line_count(chat.view.buffer))
    assert(size > 7e6, size)
    print(("  the longest pause was %d ms\n"):format(longest))
    assert(longest < 1000, ("the editor stood still for %d ms"):format(longest))
  end },
}
