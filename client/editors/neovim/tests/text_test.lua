-- Texts, frames, transcripts and the bar: what needs no daemon.

local t = require("harness")

--- Returns the module as it is loaded now; a reload replaces it.
local function text()
  return require("ollm.text")
end

return {
  { "unsafe characters are removed and others stay", function()
    local cases = {
      { "plain\ttext\n", "plain\ttext\n" },
      { "\27[31mred\27[0m", "red" },
      { "a\27]0;title\7b", "ab" },
      { "a\27]8;;http://x\27\\link", "alink" },
      { "open\27]0;never closed\nnext", "open\nnext" },
      { "\194\155" .. "31mred", "red" },
      { "nul\0 bell\7 back\8", "nul bell back" },
      { "one\r\ntwo\rthree", "one\ntwo\nthree" },
      { "\226\128\174reversed\226\129\166", "reversed" },
      { "“quotes” – and 🙂 ünïcödé", "“quotes” – and 🙂 ünïcödé" },
    }
    for _, case in ipairs(cases) do
      t.equal(case[2], text().safe(case[1]))
      t.equal(case[2], text().safe(text().safe(case[1])))
    end
    t.equal("a b", text().one_line(" a\n\27[1m b "))
  end },
  { "bytes that are not UTF-8 are replaced", function()
    t.equal("a\239\191\189b", text().utf8("a\255b"))
    t.equal("ü\239\191\189", text().utf8("ü\195"))
    t.equal("\239\191\189\239\191\189\239\191\189", text().utf8("\237\160\128"))
    t.equal("🙂", text().utf8("🙂"))
    t.equal(1, vim.fn.strchars(text().utf8("\200")))
  end },
  { "fence is longer than any inside", function()
    t.equal("```", text().fence("no fence"))
    t.equal("`````", text().fence("a\n````lua\n````"))
    t.equal("```", text().open_fence({ "text", "```lua", "code" }))
    t.equal(nil, text().open_fence({ "```lua", "code", "```" }))
    t.equal("~~~~", text().open_fence({ "~~~~", "```", "~~~" }))
  end },
  { "texts are clipped by their width on the screen", function()
    t.equal("short", text().clip("short", 10))
    t.equal("a lo…", text().clip("a long title", 5))
    t.equal("日本…", text().clip("日本語の題名", 6))
  end },
  { "numbers and times are in words", function()
    t.equal("1,234,567", text().grouped(1234567))
    t.equal("999", text().grouped(999))
    t.equal("1 file", text().counted(1, "file"))
    t.equal(1769508000, text().seconds("2026-01-27T10:00:00.000Z"))
    t.equal(951782400, text().seconds("2000-02-29T00:00:00Z"))
    t.equal("5 min ago", text().ago("2026-01-27T10:00:00Z", 1769508300))
    t.equal("2 days ago", text().ago("2026-01-27T10:00:00Z", 1769508000 + 180000))
  end },
  { "hash is that of the protocol", function()
    t.equal("811c9dc5", text().fnv1a(""))
    t.equal("e40c292c", text().fnv1a("a"))
    t.equal("bf9cf968", text().fnv1a("foobar"))
  end },
  { "lines are whole however the bytes arrive", function()
    local Reader = require("ollm.rpc").Reader
    local bytes = '{"a":"ünï🙂"}\n\r\n{"b":1}\n{"c":"' .. ("x"):rep(3000) .. '"}\n'
    local expected = { '{"a":"ünï🙂"}', '{"b":1}', '{"c":"' .. ("x"):rep(3000) .. '"}' }
    for _, size in ipairs({ 1, 2, 3, 7, 64, 100000 }) do
      local reader, lines = Reader.new(), {}
      for at = 1, #bytes, size do
        assert(reader:push(bytes:sub(at, at + size - 1), function(line)
          lines[#lines + 1] = line
        end))
      end
      t.equal(expected, lines)
    end
  end },
  { "line that is longer than a frame is refused", function()
    local rpc = require("ollm.rpc")
    local reader, piece = rpc.Reader.new(), ("x"):rep(1024 * 1024)
    local is_fine = true
    for _ = 1, 17 do
      is_fine = is_fine and reader:push(piece, function() end)
    end
    t.equal(false, is_fine)
  end },
  { "transcript closes fences, folds thinking and removes control characters", function()
    local transcript = require("ollm.transcript")
    local page = transcript.page()
    local at = "2026-01-27T10:00:00Z"
    local function message(seq, role, parts, more)
      local content = vim.tbl_extend("force", { role = role, parts = parts, timestamp = at }, more or {})
      transcript.record(page, { seq = seq, at = at, type = "message", message = content }, "id")
    end
    message(1, "user", { { type = "text", text = "Hi\27[2J there" } })
    local parts = { { type = "thinking", text = "one\ntwo" }, { type = "text", text = "```lua\ncut" } }
    message(3, "assistant", parts, { model = "e\27[1mcho", finishReason = "canceled" })
    local lines = table.concat(page.lines, "\n")
    t.contains(lines, "You  #1 ")
    t.contains(lines, "\nHi there")
    t.contains(lines, "echo  #3 ")
    t.contains(lines, "> one\n> two\n")
    t.contains(lines, "```lua\ncut\n```\n\n(canceled)")
    t.equal("> one", page.lines[page.folds[1].first + 1])
    t.equal("> two", page.lines[page.folds[1].last + 1])
    t.equal({ 1, 3 }, { page.anchors[1].seq, page.anchors[2].seq })
  end },
  { "transcript shows tools verbatim and skips other records", function()
    local transcript = require("ollm.transcript")
    local page = transcript.page()
    local result = { llmContent = "```\n" .. ("line\n"):rep(20), error = "exit\7 1" }
    local call = { id = "a", name = "sh", args = { cmd = "ls" }, result = result, writes = { { path = "a.txt" } } }
    transcript.record(page, { seq = 2, type = "toolCall", toolCall = call }, "id")
    transcript.record(page, { seq = 3, type = "usage", usage = {} }, "id")
    transcript.record(page, { seq = 4, type = "message", sizeBytes = 13000000 }, "id")
    local lines = table.concat(page.lines, "\n")
    t.contains(lines, 'calls sh {"cmd":"ls"}')
    t.contains(lines, "\n````\n```\nline\n")
    t.contains(lines, "failed: exit 1")
    t.contains(lines, "wrote a.txt")
    t.contains(lines, "#4 has 13,000,000 bytes and is not shown: ollmctl sessions view id")
    t.equal(1, #page.folds)
    -- A fence that the removal of a sequence makes does not end the block either.
    page = transcript.page()
    call = { id = "b", name = "sh", args = { cmd = "ls" }, result = { llmContent = "``\27[m`\nx" } }
    transcript.record(page, { seq = 5, type = "toolCall", toolCall = call }, "id")
    t.contains(page.lines, "\n````\n```\nx\n````")
  end },
  { "plan names files of its project only, and opens no address", function()
    local items = require("ollm.undo").items({
      root = "/p", files = { { path = "a.txt", status = "conflict" } }, kept = { { path = "", file = ".ollm-undo-1/0" } },
    })
    t.equal({ "/p/a.txt", "/p/.ollm-undo-1/0" }, { items[1].filename, items[2].filename })
    items = require("ollm.undo").items({ files = { { path = "scp://host/a", status = "outside" } } })
    t.equal(nil, items[1].filename)
    t.equal("scp://host/a: stays: it is outside of the project", items[1].text)
  end },
  { "bar shows the window, the phase and the title as far as there is room", function()
    local winbar = require("ollm.winbar")
    local info = {
      title = "50 % of\27[31m it", model = "echo", status = { contextTokens = 1234, promptLimit = 6963 },
      phase = { name = "reading", tokens = 2000, expectedMs = 1000, startedMs = 100 },
    }
    local line = winbar.line(info, 120, 600)
    t.contains(line, "reading 2,000 tokens, 50 %%")
    t.contains(line, "1,234/6,963 tokens (17 %%)")
    t.contains(line, "50 %% of it")
    t.contains(winbar.line(info, 120, 1e6), "99 %%")
    -- The line on the screen is never wider than the window.
    for width = 10, 120, 5 do
      local unspread = winbar.line(info, width, 600):gsub("%%=", "")
      local shown = vim.api.nvim_eval_statusline(unspread, { maxwidth = 500, use_winbar = true })
      assert(shown.width <= width, width .. ": " .. shown.str)
    end
    t.equal("waits for 2 calls", winbar.phase({ name = "queued", ahead = 2 }, 0))
    t.contains(winbar.line({ problem = "no daemon" }, 80, 0), "no daemon")
  end },
}
