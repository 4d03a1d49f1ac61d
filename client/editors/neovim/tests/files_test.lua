-- Undo and redo, with files that tools wrote: the plan as a quickfix list, then the question, then the files.

local t = require("harness")

--- Records a turn whose tool wrote a file, and writes the file.
local function tool_turn(chat, name, before, after)
  t.turn(chat, "change " .. name)
  vim.fn.writefile({ after }, t.project .. "/" .. name)
  local earlier = before and { text = before .. "\n" } or "absent"
  local write = { path = name, before = earlier, after = { text = after .. "\n" } }
  local result = { llmContent = "written", success = true }
  local call = { id = "call-" .. name, name = "write_file", args = { path = name }, result = result, writes = { write } }
  t.call("session.recordToolCall", { sessionId = chat:id(), toolCall = call })
end

--- Returns the lines of the quickfix list.
local function quickfix()
  return vim.tbl_map(function(item)
    local path = item.bufnr > 0 and vim.api.nvim_buf_get_name(item.bufnr) or ""
    return vim.fs.basename(path) .. ": " .. item.text
  end, vim.fn.getqflist())
end

local function is_open()
  return vim.fn.getqflist({ winid = 0 }).winid ~= 0
end

local function chosen(asked)
  t.wait("the question", function()
    return asked.is_done
  end)
end

return {
  { "undo without files acts at once, and redo brings it back", function()
    t.new_home()
    local chat = t.new_chat()
    t.turn(chat, "one")
    t.turn(chat, "two")
    vim.cmd("Ollm undo")
    t.wait_notice("undone: turn two")
    t.wait("the turn is gone", function()
      return not t.shown(chat):find("You said: two", 1, true)
    end)
    vim.cmd("Ollm redo")
    t.wait("the turn is back", function()
      return t.shown(chat):find("You said: two", 1, true)
    end)
    vim.cmd("Ollm undo 2")
    t.wait("both turns are gone", function()
      return not t.shown(chat):find("You said", 1, true)
    end)
    assert(not is_open())
    vim.cmd("Ollm undo 5")
    t.wait(":Ollm undo reports that there is nothing more", function()
      return t.noticed():find("undo", 1, true) and #t.notices >= 4
    end)
  end },
  { "files are put back after the plan was shown and confirmed", function()
    t.new_home()
    local chat = t.new_chat()
    tool_turn(chat, "new.txt", nil, "made by a tool")
    tool_turn(chat, "old.txt", "mine", "changed by a tool")
    vim.cmd("edit " .. t.project .. "/old.txt")
    local asked = t.answer("put 1 file back")
    local seen
    local select = vim.ui.select
    vim.ui.select = function(...)
      seen = { lines = quickfix(), is_open = is_open(), content = vim.fn.readfile(t.project .. "/old.txt") }
      select(...)
    end
    local window = vim.api.nvim_get_current_win()
    vim.cmd("Ollm undo")
    chosen(asked)
    -- Before the answer: the plan is shown, nothing has changed, and the cursor is where it was.
    t.equal({ "old.txt: put back" }, seen.lines)
    t.equal(true, seen.is_open)
    t.equal({ "changed by a tool" }, seen.content)
    t.equal(window, vim.api.nvim_get_current_win())
    t.wait_notice("1 file put back")
    t.equal({ "mine" }, vim.fn.readfile(t.project .. "/old.txt"))
    t.wait("the buffer shows the file", function()
      return vim.api.nvim_buf_get_lines(vim.fn.bufnr("old.txt"), 0, -1, false)[1] == "mine"
    end)
    t.wait("the turn is gone", function()
      return not t.shown(chat):find("wrote old.txt", 1, true)
    end)
    asked = t.answer("put 1 file back")
    vim.cmd("Ollm redo")
    chosen(asked)
    t.wait("the file is changed again", function()
      return vim.fn.readfile(t.project .. "/old.txt")[1] == "changed by a tool"
    end)
  end },
  { "undo of the conversation alone leaves files, and nothing means nothing", function()
    t.new_home()
    local chat = t.new_chat()
    tool_turn(chat, "new.txt", nil, "made by a tool")
    local asked = t.answer("nothing")
    vim.cmd("Ollm undo")
    chosen(asked)
    t.wait_notice("nothing changed")
    t.wait("the call is shown", function()
      return t.shown(chat):find("wrote new.txt", 1, true)
    end)
    asked = t.answer("leave the files")
    vim.cmd("Ollm undo")
    chosen(asked)
    t.wait("the turn is gone", function()
      return not t.shown(chat):find("wrote new.txt", 1, true)
    end)
    t.equal({ "made by a tool" }, vim.fn.readfile(t.project .. "/new.txt"))
  end },
  { "file that somebody else changed stays, and the plan says so", function()
    t.new_home()
    local chat = t.new_chat()
    tool_turn(chat, "old.txt", "mine", "changed by a tool")
    vim.fn.writefile({ "changed by me since" }, t.project .. "/old.txt")
    local asked = t.answer("leave the files")
    vim.cmd("Ollm undo")
    chosen(asked)
    t.contains(quickfix(), "old.txt: stays: somebody else changed it")
    t.equal(2, #asked.lines)
    t.wait("the turn is gone", function()
      return not t.shown(chat):find("wrote old.txt", 1, true)
    end)
    t.equal({ "changed by me since" }, vim.fn.readfile(t.project .. "/old.txt"))
  end },
  { "buffer with unsaved changes is named in the plan", function()
    t.new_home()
    local chat = t.new_chat()
    tool_turn(chat, "old.txt", "mine", "changed by a tool")
    vim.cmd("edit " .. t.project .. "/old.txt")
    vim.api.nvim_buf_set_lines(0, 0, 0, false, { "not saved" })
    local asked = t.answer("nothing")
    vim.cmd("Ollm undo")
    chosen(asked)
    t.contains(quickfix(), "a buffer has unsaved changes")
    t.wait_notice("nothing changed")
    assert(chat)
  end },
  { "files of a session are listed and opened", function()
    t.new_home()
    local chat = t.new_chat()
    tool_turn(chat, "made.lua", nil, "return 1")
    local asked = t.answer("made.lua")
    vim.cmd("Ollm files")
    chosen(asked)
    t.contains(asked.lines[1], "made.lua · written in #")
    t.wait("the file is open", function()
      return vim.fs.basename(vim.api.nvim_buf_get_name(0)) == "made.lua"
    end)
  end },
}
